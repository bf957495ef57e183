"""Takes segments of a handoff that landed in device memory, one batch after the other.

Shapes: none; segments are bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from decode_service.engine.arrival import Taken
from decode_service.engine.kv_cache import SequencePages
from decode_service.engine.landed import DeviceBytes
from decode_service.engine.page_scatter import PageScatter
from decode_service.engine.verify import ManifestVerifier
from decode_service.sparsity.layouts import KvLayout
from shared.errors import ManifestError
from shared.kv.slab_layout import SlabLayout
from shared.kv_memory.sums import RunningSums, SegmentSums
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

    scatter: Callable[[SlabLayout, torch.Tensor, SequencePages], PageScatter]
    """Begins copies into pages."""
    sums: SegmentSums
    """Begins sums."""
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
        self._numbers = {segment.offset: n for n, segment in enumerate(handoff.layout.segments)}
        self._begun: tuple[PageScatter, RunningSums] | None = None
        self._left = len(handoff.layout.segments)
        self._sums_S: torch.Tensor | None = None
        self._layouts: dict[int, KvLayout] = {}
        self._wrong: ManifestError | None = None
        self._last: torch.cuda.Event | None = None

    @torch.no_grad()
    def take(self, segments: Sequence[Segment]) -> None:
        """See `SegmentTaker.take`."""
        tools = self._tools
        with torch.cuda.stream(tools.stream):
            try:
                scatter, sums = self._begun = self._begun or self._begin()
                for first, end in _runs([self._numbers[each.offset] for each in segments]):
                    # Summed ahead of the copies: bytes that a notice was ahead of are found out.
                    sums.add(first, end)
                    scatter.copy(first, end)
                self._left -= len(segments)
                if not self._left:
                    self._sums_S = tools.sums.on_host(sums)
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
        assert self._sums_S is not None, "every segment was taken"
        for index in range(len(layout.layouts)):
            if index not in self._layouts and self._wrong is None:
                self._layouts[index] = self._checked(index, None)  # the identity
        return Taken(
            layout=layout,
            sums=tuple(map(unsigned, self._sums_S.tolist())),
            layouts=() if self._wrong else tuple(v for _, v in sorted(self._layouts.items())),
            wrong=self._wrong,
        )

    def wait(self) -> None:
        """See `SegmentTaker.wait`."""
        if self._last is not None:
            self._last.synchronize()

    def _begin(self) -> tuple[PageScatter, RunningSums]:
        handoff, tools, data = self._handoff, self._tools, self._handoff.data.tensor
        if tools.stream is not None and handoff.pages.free_since is not None:
            tools.stream.wait_event(handoff.pages.free_since)
        return (
            tools.scatter(handoff.layout, data, handoff.pages),
            tools.sums.begin(data, handoff.layout.segments),
        )

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


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and end of each stretch of numbers that follow each other."""
    first = end = -1
    for number in sorted(numbers):
        if number != end:
            if end > first:
                yield first, end
            first = number
        end = number + 1
    if end > first:
        yield first, end
