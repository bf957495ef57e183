"""Takes segments of a handoff that landed in device memory, one batch after the other.

Shapes: none; segments are bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from decode_service.engine.arrival import Taken
from decode_service.engine.kv_cache import SequencePages
from decode_service.engine.landed import DeviceBytes
from decode_service.engine.verify import ManifestVerifier
from decode_service.sparsity.layouts import KvLayout
from shared.errors import ManifestError
from shared.kv.slab_layout import SlabLayout
from shared.kv_memory.sums import SegmentSums
from shared.kv_memory.weighted_sum import unsigned
from shared.types.kv_manifest import Segment, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFrom:
    """One handoff: where its segments lie, and where they go."""

    layout: SlabLayout
    """Where they lie."""
    data: DeviceBytes
    """Its slab."""
    pages: SequencePages
    """Its pages."""
    prompt_tokens: int
    """Original prompt length L."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingTools:
    """What takes segments of every handoff."""

    scatter: Callable[[SlabLayout, Sequence[Segment], torch.Tensor, SequencePages], None]
    """Enqueues copies of segments into pages; positions among them are skipped."""
    sums: SegmentSums
    """Enqueues sums."""
    stream: torch.cuda.Stream | None
    """Where both are enqueued; None where calls return when their work is done."""
    verifier: ManifestVerifier
    """Checks positions."""
    for_steps: Callable[[KvLayout], KvLayout]
    """Moves checked positions to where steps read them."""


class DeviceTaker:
    """A `SegmentTaker`.

    Args:
        handoff: the one.
        tools: of all.
    """

    def __init__(self, handoff: TakenFrom, tools: TakingTools) -> None:
        self._handoff = handoff
        self._tools = tools
        self._begun = False
        self._sums: list[tuple[Sequence[Segment], torch.Tensor]] = []
        self._layouts: dict[int, KvLayout] = {}
        self._wrong: ManifestError | None = None
        self._last: torch.cuda.Event | None = None

    @torch.no_grad()
    def take(self, segments: Sequence[Segment]) -> None:
        """See `SegmentTaker.take`."""
        handoff, tools = self._handoff, self._tools
        with torch.cuda.stream(tools.stream):
            free_since, self._begun = None if self._begun else handoff.pages.free_since, True
            if tools.stream is not None and free_since is not None:
                tools.stream.wait_event(free_since)
            try:
                # Summed behind the copies: bytes that change meanwhile are found out.
                tools.scatter(handoff.layout, segments, handoff.data.tensor, handoff.pages)
                self._sums.append((segments, tools.sums.enqueue(handoff.data.tensor, segments)))
                for segment in segments:
                    if segment.kind is SegmentKind.POSITIONS:
                        self._read_positions(segment)
            finally:
                if tools.stream is not None:
                    self._last = tools.stream.record_event()

    def taken(self) -> Taken:
        """See `SegmentTaker.taken`."""
        self.wait()
        layout = self._handoff.layout
        sums = {
            segment.offset: unsigned(total)
            for segments, totals in self._sums
            for segment, total in zip(segments, totals.tolist(), strict=True)
        }
        for index in range(len(layout.layouts)):
            if index not in self._layouts and self._wrong is None:
                self._layouts[index] = self._checked(index, None)  # the identity
        return Taken(
            layout=layout,
            sums=tuple(sums[segment.offset] for segment in layout.segments),
            layouts=() if self._wrong else tuple(v for _, v in sorted(self._layouts.items())),
            wrong=self._wrong,
        )

    def wait(self) -> None:
        """See `SegmentTaker.wait`."""
        if self._last is not None:
            self._last.synchronize()

    def _read_positions(self, segment: Segment) -> None:
        try:
            self._layouts[segment.index] = self._checked(
                segment.index, self._handoff.data.positions(segment)
            )
        except ManifestError as error:
            self._wrong = self._wrong or error

    def _checked(self, index: int, positions: torch.Tensor | None) -> KvLayout:
        handoff = self._handoff
        layout = self._tools.verifier.layout(
            handoff.layout.layouts[index],
            index,
            prompt_tokens=handoff.prompt_tokens,
            positions=positions,
        )
        return self._tools.for_steps(layout)
