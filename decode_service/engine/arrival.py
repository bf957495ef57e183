"""A handoff on its way: segments go to their pages as they land, and little is left to the commit.

The event loop hears of ranges and counts what is whole; one thread takes whole segments, those of
all handoffs in the order in which they were handed to it. Nothing is adopted by that: the pages are
the handoff's alone, and its commit compares what was found with what is promised. What is unclear,
as a range that came twice, leaves everything to the commit.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import structlog

from decode_service.sparsity.layouts import KvLayout
from shared.errors import ManifestError
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import KvManifest, Segment

BATCH_BYTES = 32 << 20
"""Bytes of segments that are taken together: few launches, and the last ones are copied in a few
dozen microseconds."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """All of a handoff's segments as they were found."""

    layout: SlabLayout
    """Where they lie."""
    sums: tuple[int, ...]
    """The weighted sum of each segment, in the layout's order."""
    layouts: tuple[KvLayout, ...]
    """Positions, on the device of the pages; none where they are wrong."""
    wrong: ManifestError | None = None
    """What is wrong with the positions."""

    def serves(self, manifest: KvManifest) -> bool:
        """Whether the manifest promises these very segments."""
        ours, theirs = (map(_place, found.segments) for found in (self.layout, manifest))
        return (
            self.layout.layouts == manifest.layouts
            and self.layout.layer_layouts == manifest.layer_layouts
            and tuple(ours) == tuple(theirs)
        )


class SegmentTaker(Protocol):
    """Brings segments of one handoff into its pages; one thread calls it, `wait` aside."""

    def take(self, segments: Sequence[Segment]) -> None:
        """Enqueues copies and sums of segments that are whole."""

    def taken(self) -> Taken:
        """What was found, once every segment was taken; waits for it."""

    def wait(self) -> None:
        """Waits until nothing that was enqueued is under way; any thread."""


class Arrival:
    """Made with the grant; all but the taking happens on the event loop.

    Args:
        layout: where segments lie.
        taker: brings them into pages.
        executor: one thread, for the arrivals of all handoffs.
        batch_bytes: bytes of segments that are taken together.
    """

    def __init__(
        self,
        layout: SlabLayout,
        *,
        taker: SegmentTaker,
        executor: Executor,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._segments = layout.segments
        self._starts = [segment.offset for segment in layout.segments]
        self._landed = [0] * len(layout.segments)
        self._left = len(layout.segments)
        self._ready: list[Segment] = []
        self._taker = taker
        self._executor = executor
        self._batch_bytes = batch_bytes
        self._taken: asyncio.Future[Taken | None] | None = None
        self._unclear = False
        self._abandoned = False
        self._taking = threading.Lock()

    def landed(self, offset: int, length: int) -> None:
        """Bytes of the slab are there, each of them for the first time."""
        end, index = offset + length, max(0, bisect_right(self._starts, offset) - 1)
        for number in range(index, len(self._segments)):
            segment = self._segments[number]
            if segment.offset >= end:
                break
            inside = min(end, segment.offset + segment.length) - max(offset, segment.offset)
            self._count(number, max(0, inside))
        self._hand_over()

    async def taken(self) -> Taken | None:
        """What was found of all segments; None where the commit has to look for itself."""
        if self._taken is None or self._unclear:
            return None
        return await asyncio.shield(self._taken)

    async def give_way(self) -> None:
        """See `abandon`; the loop goes on while something is under way."""
        if self._taken is None:
            self.abandon()
        else:
            await asyncio.to_thread(self.abandon)

    def abandon(self) -> None:
        """From now on nothing touches the slab or the pages, and nothing is under way."""
        with self._taking:
            self._abandoned = True
            self._taker.wait()

    def _count(self, number: int, nbytes: int) -> None:
        segment = self._segments[number]
        self._landed[number] += nbytes
        if self._landed[number] > segment.length:
            self._unclear = True
        elif nbytes and self._landed[number] == segment.length:
            self._left -= 1
            self._ready.append(segment)

    def _hand_over(self) -> None:
        if self._unclear or not self._ready:
            return
        if self._left and sum(each.length for each in self._ready) < self._batch_bytes:
            return
        batch, self._ready = tuple(self._ready), []
        loop = asyncio.get_running_loop()
        self._taken = loop.run_in_executor(self._executor, self._take, batch, not self._left)

    def _take(self, batch: Sequence[Segment], last: bool) -> Taken | None:  # noqa: FBT001  of an executor
        """On the thread; a failure leaves the work to the commit, which meets it again."""
        with self._taking:
            if self._abandoned or self._unclear:
                return None
            try:
                self._taker.take(batch)
                return self._taker.taken() if last else None
            except Exception:  # noqa: BLE001  whatever it is, the commit meets it too and says so
                self._unclear = True
                _log.exception("segments that landed could not be taken; their commit tries again")
                return None


def _place(segment: Segment) -> tuple[object, ...]:
    return segment.kind, segment.index, segment.offset, segment.length
