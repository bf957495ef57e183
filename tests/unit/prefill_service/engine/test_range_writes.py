"""Ranges are written in order, one at a time; failures and cancels are not waited out."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from prefill_service.engine.prompt_slab import Range
from prefill_service.engine.range_writes import RangeWrites
from shared.errors import TransportError
from tests.support.waiting import until


class Feed:
    """Ranges that a test hands out, and writes that it lets end."""

    def __init__(self) -> None:
        self._ranges: asyncio.Queue[Range | None] = asyncio.Queue()
        self.begun: list[Range] = []
        self.ended: list[Range] = []
        self.cancelled: list[Range] = []
        self.error: TransportError | None = None
        self.go = asyncio.Semaphore(0)

    def put(self, *ranges: Range | None) -> None:
        for each in ranges:
            self._ranges.put_nowait(each)

    async def ranges(self) -> AsyncIterator[Range]:
        while (each := await self._ranges.get()) is not None:
            yield each

    async def write(self, offset: int, length: int) -> None:
        self.begun.append((offset, length))
        try:
            await self.go.acquire()
        except asyncio.CancelledError:
            self.cancelled.append((offset, length))
            raise
        if self.error is not None:
            raise self.error
        self.ended.append((offset, length))


FIRST, SECOND = (0, 4), (4, 8)


async def test_one_range_is_written_at_a_time() -> None:
    feed = Feed()
    writes = RangeWrites(feed.write)
    following = asyncio.ensure_future(writes.follow(feed.ranges(), most_left=0))
    feed.put(FIRST, SECOND, None)
    await until(lambda: feed.begun == [FIRST])
    feed.go.release()
    await until(lambda: feed.begun == [FIRST, SECOND])
    assert feed.ended == [FIRST]
    assert not following.done()
    feed.go.release()
    await following
    assert feed.ended == [FIRST, SECOND]
    await writes.end()


async def test_the_last_write_may_still_be_under_way() -> None:
    feed = Feed()
    writes = RangeWrites(feed.write)
    feed.put(FIRST, None)
    await writes.follow(feed.ranges(), most_left=1 << 30)
    assert not feed.ended
    feed.go.release()
    await writes.end()
    assert feed.ended == [FIRST]


async def test_a_long_last_write_is_waited_for() -> None:
    feed = Feed()
    feed.put(FIRST, None)
    most = FIRST[1] - 1
    following = asyncio.ensure_future(RangeWrites(feed.write).follow(feed.ranges(), most_left=most))
    await until(lambda: feed.begun == [FIRST])
    assert not following.done()
    feed.go.release()
    await following
    assert feed.ended == [FIRST]


async def test_a_write_that_fails_is_heard_of_before_the_next_range_comes() -> None:
    feed = Feed()
    feed.error = TransportError("gone")
    feed.put(FIRST)
    feed.go.release()
    with pytest.raises(TransportError, match="gone"):
        await RangeWrites(feed.write).follow(feed.ranges(), most_left=1 << 30)


async def test_a_last_write_that_fails_is_heard_of_at_the_end() -> None:
    feed = Feed()
    feed.error = TransportError("gone")
    writes = RangeWrites(feed.write)
    feed.put(FIRST, None)
    await writes.follow(feed.ranges(), most_left=1 << 30)
    feed.go.release()
    with pytest.raises(TransportError, match="gone"):
        await writes.end()


async def test_a_cancel_ends_the_write_that_is_under_way() -> None:
    feed = Feed()
    following = asyncio.ensure_future(RangeWrites(feed.write).follow(feed.ranges(), most_left=0))
    feed.put(FIRST)
    await until(lambda: feed.begun == [FIRST])
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert feed.cancelled == [FIRST]


async def test_no_ranges_need_no_write() -> None:
    feed = Feed()
    writes = RangeWrites(feed.write)
    feed.put(None)
    await writes.follow(feed.ranges(), most_left=0)
    await writes.end()
    assert not feed.begun
