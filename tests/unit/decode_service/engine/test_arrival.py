"""Segments that are taken as they land: which, when, in what order, and when not."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from decode_service.engine.arrival import Arrival, Taken
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment
from shared.types.methods import KvSelect

LAYOUT = SlabLayout.plan(
    KvGeometry(num_layers=4, num_kv_heads=1, head_dim=4),
    prompt_tokens=20,
    kept_tokens=6,
    whole_layers=2,
    pruning_layer=1,
    kv_select=KvSelect.SHARED,
    pruned=True,
)
SEGMENTS = LAYOUT.segments


class Taker:
    """Notes what it is asked; `gate` holds it up, `error` makes it fail."""

    def __init__(self) -> None:
        self.batches: list[tuple[Segment, ...]] = []
        self.waits = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def take(self, segments: Sequence[Segment]) -> None:
        self.begun.set()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(tuple(segments))

    def taken(self) -> Taken:
        return Taken(layout=LAYOUT, sums=(1,) * len(SEGMENTS), layouts=())

    def wait(self) -> None:
        self.waits += 1

    @property
    def segments(self) -> list[Segment]:
        return [segment for batch in self.batches for segment in batch]


@pytest.fixture
async def thread() -> AsyncIterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def arrival_of(taker: Taker, thread: ThreadPoolExecutor, *, batch_bytes: int = 1) -> Arrival:
    return Arrival(LAYOUT, taker=taker, executor=thread, batch_bytes=batch_bytes)


async def settled(thread: ThreadPoolExecutor) -> None:
    await asyncio.get_running_loop().run_in_executor(thread, lambda: None)


async def test_segments_are_taken_once_they_are_whole(thread: ThreadPoolExecutor) -> None:
    taker = Taker()
    arrival = arrival_of(taker, thread)
    first, second = SEGMENTS[:2]
    arrival.landed(first.offset, first.length - 4)
    await settled(thread)
    assert not taker.batches
    # One range ends the first, covers the second and begins the third.
    arrival.landed(first.offset + first.length - 4, 4 + second.length + 8)
    await settled(thread)
    assert taker.segments == [first, second]
    assert await arrival.taken() is None, "others are missing"


async def test_halves_that_come_apart_make_a_segment(thread: ThreadPoolExecutor) -> None:
    taker = Taker()
    arrival = arrival_of(taker, thread)
    for segment in SEGMENTS:
        half = segment.length // 2
        arrival.landed(segment.offset + half, segment.length - half)
        arrival.landed(segment.offset, half)
    found = await arrival.taken()
    assert found is not None
    assert found.sums == (1,) * len(SEGMENTS)
    assert taker.segments == list(SEGMENTS)


async def test_small_segments_go_together_and_the_last_ones_at_once(
    thread: ThreadPoolExecutor,
) -> None:
    taker = Taker()
    arrival = arrival_of(taker, thread, batch_bytes=SEGMENTS[0].length + SEGMENTS[1].length)
    for segment in SEGMENTS:
        arrival.landed(segment.offset, segment.length)
    assert await arrival.taken() is not None
    assert [len(batch) for batch in taker.batches] == [2, len(SEGMENTS) - 2]


async def test_one_range_may_bring_all(thread: ThreadPoolExecutor) -> None:
    taker = Taker()
    arrival = arrival_of(taker, thread)
    arrival.landed(0, LAYOUT.total_bytes)
    assert await arrival.taken() is not None
    assert taker.batches == [SEGMENTS]


@pytest.mark.parametrize("late", [False, True], ids=["before the rest", "after all"])
async def test_bytes_that_come_twice_leave_all_to_the_commit(
    thread: ThreadPoolExecutor, late: bool
) -> None:
    taker = Taker()
    arrival = arrival_of(taker, thread)
    pieces = [(segment.offset, segment.length) for segment in SEGMENTS]
    pieces.insert(len(pieces) if late else 1, pieces[0])
    for offset, length in pieces:
        arrival.landed(offset, length)
    await settled(thread)
    assert await arrival.taken() is None


async def test_a_failure_leaves_all_to_the_commit(thread: ThreadPoolExecutor) -> None:
    taker = Taker()
    taker.error = RuntimeError("CUDA error")
    arrival = arrival_of(taker, thread)
    for segment in SEGMENTS:
        arrival.landed(segment.offset, segment.length)
        await settled(thread)
        taker.error = None
    assert await arrival.taken() is None
    assert not taker.batches, "nothing is taken after a failure"


async def test_what_was_given_up_is_touched_no_more(thread: ThreadPoolExecutor) -> None:
    """Queued behind another handoff's work, or under way: it is over when `abandon` returns."""
    taker, other = Taker(), Taker()
    arrival, ahead = arrival_of(taker, thread), arrival_of(other, thread)
    other.gate.clear()
    ahead.landed(0, LAYOUT.total_bytes)
    await asyncio.to_thread(other.begun.wait)
    arrival.landed(0, LAYOUT.total_bytes)
    arrival.abandon()
    assert taker.waits == 1, "what was enqueued before is waited for"
    other.gate.set()
    assert await ahead.taken() is not None
    assert await arrival.taken() is None
    assert not taker.batches


async def test_giving_up_waits_for_the_batch_that_is_being_enqueued(
    thread: ThreadPoolExecutor,
) -> None:
    taker = Taker()
    taker.gate.clear()
    arrival = arrival_of(taker, thread)
    arrival.landed(0, LAYOUT.total_bytes)
    await asyncio.to_thread(taker.begun.wait)
    giving_up = asyncio.ensure_future(asyncio.to_thread(arrival.abandon))
    await asyncio.sleep(0)
    assert not giving_up.done()
    taker.gate.set()
    await giving_up
    assert taker.batches
    assert taker.waits == 1
