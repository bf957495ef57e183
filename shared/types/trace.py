"""What a traced request tells: which prompt tokens were kept, which pages were read, and when.

Bounded whatever the request; holds positions and counts, never tokens. The JSON is described in
gateway/debug/README.md.
"""

from dataclasses import dataclass

from shared.types.handoff_trace import HandoffTrace

PROMPT_COLUMNS = 512
"""Columns that a prompt is cut into at most."""

MAX_SPANS = 8192
"""Spans of all layouts of a prompt together; with more of them they are left out."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTrace:
    """One set of kept tokens."""

    layers: tuple[int, ...]
    """Layers that hold it."""
    kept_tokens: int
    """KV slots of the prompt in each of these layers."""
    share: tuple[float, ...]
    """Kept over all tokens of each column, 0 to 1; mean over heads that differ."""
    spans: Ranges | None
    """Positions that a head keeps; None when there are too many."""

    def to_json(self) -> dict[str, object]:
        """One entry of `layouts`."""
        return {
            "layers": list(self.layers),
            "kept_tokens": self.kept_tokens,
            "share": [round(value, 3) for value in self.share],
            "spans": None if self.spans is None else [list(span) for span in self.spans],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTrace:
    """Which prompt positions the layers hold."""

    prompt_tokens: int
    """L."""
    column_tokens: int
    """Tokens of a column; the last one may be shorter."""
    score: tuple[float, ...] | None
    """Best rank of each column's tokens under the score that chose, 0 to 1; None: none did."""
    layouts: tuple[LayoutTrace, ...]
    """Every layer is in exactly one."""
    handoff: HandoffTrace | None = None
    """When its KV was computed and moved; None before it has."""

    def to_json(self) -> dict[str, object]:
        """The `prompt` object of a trace."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "column_tokens": self.column_tokens,
            "score": None if self.score is None else [round(value, 3) for value in self.score],
            "layouts": [layout.to_json() for layout in self.layouts],
            "handoff": None if self.handoff is None else self.handoff.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLayer:
    """A layer whose reads were noted."""

    layer: int
    """Its number."""
    role: str
    """full, delta or sparse."""
    prompt_slots: int
    """Slots that hold the prompt; those after them hold generated tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStep:
    """One decode step."""

    step: int
    """Counts from 1."""
    position: int
    """Position of the fed token."""
    attended: int
    """KV slots read, summed over layers."""
    dense: int
    """KV slots that full attention over the unpruned prompt would have read."""
    refreshed: tuple[int, ...]
    """Layers that chose anew."""
    read: tuple[Ranges, ...]
    """Columns that each watched layer read."""

    def to_json(self) -> dict[str, object]:
        """One entry of `steps`."""
        return {
            "step": self.step,
            "position": self.position,
            "attended": self.attended,
            "dense": self.dense,
            "refreshed": list(self.refreshed),
            "read": [[list(piece) for piece in ranges] for ranges in self.read],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTrace:
    """Which KV slots a few layers read, step by step."""

    policy: str
    """Page policy."""
    column_slots: int
    """Slots of a column, a multiple of the page size."""
    columns: int
    """Columns that the longest answer needs."""
    total_steps: int
    """Decode steps in all."""
    stride: int
    """Every how many steps one is told."""
    layers: tuple[WatchedLayer, ...]
    """The layers that were watched."""
    steps: tuple[PageStep, ...]
    """The steps, in order."""

    def to_json(self) -> dict[str, object]:
        """The `pages` object of a trace."""
        return {
            "policy": self.policy,
            "column_slots": self.column_slots,
            "columns": self.columns,
            "total_steps": self.total_steps,
            "stride": self.stride,
            "layers": [
                {"layer": each.layer, "role": each.role, "prompt_slots": each.prompt_slots}
                for each in self.layers
            ],
            "steps": [step.to_json() for step in self.steps],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallBar:
    """One phase of a request."""

    hop: str
    """gateway, prefill, transfer or decode."""
    phase: str
    """What was done."""
    start_s: float
    """Since the arrival, on the gateway's clock, in seconds."""
    seconds: float
    """Length, measured by the process that did the work."""

    def to_json(self) -> dict[str, object]:
        """One entry of `waterfall`."""
        return {
            "hop": self.hop,
            "phase": self.phase,
            "start_ms": round(self.start_s * 1000, 3),
            "ms": round(self.seconds * 1000, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Where the time of a request went, what was kept and what was read."""

    waterfall: tuple[WaterfallBar, ...] = ()
    """Phases in order of their start."""
    ttft_s: float = 0.0
    """Arrival to first token, in seconds."""
    total_s: float = 0.0
    """Arrival to the end of the answer, in seconds."""
    prompt: PromptTrace | None = None
    """None when no prefill was traced."""
    pages: PageTrace | None = None
    """None when nothing was decoded after the first token, or it was not traced."""

    def to_json(self) -> dict[str, object]:
        """The `trace` object of a response."""
        return {
            "waterfall": [bar.to_json() for bar in self.waterfall],
            "ttft_ms": round(self.ttft_s * 1000, 3),
            "total_ms": round(self.total_s * 1000, 3),
            "prompt": None if self.prompt is None else self.prompt.to_json(),
            "pages": None if self.pages is None else self.pages.to_json(),
        }
