"""When the phases of one request were, on the gateway's clock.

Each length was measured by the process that did the work. A worker's phase is put where the gateway
heard of it, so that no two clocks are compared and a gap between two phases is network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.types.trace import WaterfallBar


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Moments in seconds on the monotonic clock; 0 for what has not happened."""

    arrived: float = 0.0
    """The request came in."""
    entered: float = 0.0
    """Its prompt is tokenized and asks to enter the queue."""
    started: float = 0.0
    """The gateway heard that the prefill began; of the attempt that answered."""
    first_token: float = 0.0
    """The first token came."""
    sealed: float = 0.0
    """The gateway heard that the KV is on the decode side."""
    decoding: float = 0.0
    """The gateway heard that the answer joins the batch, be it before it heard of the KV."""
    cut: float = 0.0
    """The decode worker of a shown answer was lost, and a replay began."""
    ended: float = 0.0
    """The answer was complete."""

    @property
    def total_s(self) -> float:
        """Arrival to the end, or 0 before it."""
        return max(0.0, self.ended - self.arrived) if self.ended else 0.0

    def bars(self, phases_s: Mapping[str, float]) -> tuple[WaterfallBar, ...]:
        """The phases so far, in order of their start.

        Args:
            phases_s: durations by phase, as the workers and the gateway measured them.
        """
        found = [bar for bar in self._places(phases_s) if bar is not None]
        return tuple(sorted(found, key=lambda bar: bar.start_s))

    def _places(self, phases_s: Mapping[str, float]) -> list[WaterfallBar | None]:
        def bar(hop: str, phase: str, *, start: float, key: str = "") -> WaterfallBar | None:
            seconds = phases_s.get(key or phase)
            if seconds is None or not start:
                return None
            return WaterfallBar(
                hop=hop, phase=phase, start_s=max(0.0, start - self.arrived), seconds=seconds
            )

        def ending(at: float, phase: str) -> float:
            return at - phases_s.get(phase, 0.0) if at else 0.0

        first_step = self.decoding + phases_s.get("decode_queue", 0.0)
        tokenize = None
        if self.entered:
            seconds = max(0.0, self.entered - self.arrived)
            tokenize = WaterfallBar(hop="gateway", phase="tokenize", start_s=0.0, seconds=seconds)
        return [
            tokenize,
            bar("gateway", "gateway_queue", start=self.entered),
            bar("gateway", "replay", start=self.cut),
            bar("prefill", "prefill_queue", start=ending(self.started, "prefill_queue")),
            bar("prefill", "prefill", start=self.started),
            bar("transfer", "transfer", start=ending(self.sealed, "transfer")),
            bar("decode", "decode_queue", start=self.decoding),
            bar("decode", "first_decode", start=first_step),
            bar(
                "decode",
                "stream",
                start=first_step + phases_s.get("first_decode", 0.0),
                key="decode",
            ),
        ]
