"""Room for slabs in one buffer: by turns, and given back."""

import asyncio
import mmap

from prefill_service.engine.slab_room import SlabRoom
from shared.kv.memory import HostMemory

PAGE = mmap.PAGESIZE


def room_of(pages: int) -> SlabRoom:
    return SlabRoom(HostMemory(pages * PAGE), make_room=lambda: False)


async def test_a_long_prompt_is_not_passed_by_short_ones() -> None:
    """Gaps that would do for the short one stay until the long one has its place."""
    room = room_of(4)
    _, free_first = await room._take(2 * PAGE)
    _, free_second = await room._take(PAGE)
    long_one = asyncio.ensure_future(room._take(3 * PAGE))
    await asyncio.sleep(0)
    short_one = asyncio.ensure_future(room._take(PAGE))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not long_one.done()
    assert not short_one.done()
    free_first()
    free_second()
    part, free_long = await long_one
    assert part.nbytes == 3 * PAGE
    _, free_short = await short_one
    free_long()
    free_short()
    assert room.num_leases == 0


async def test_who_waits_no_more_lets_the_next_one_in() -> None:
    room = room_of(2)
    _, free = await room._take(PAGE)
    gone = asyncio.ensure_future(room._take(2 * PAGE))
    await asyncio.sleep(0)
    next_one = asyncio.ensure_future(room._take(PAGE))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    _, free_next = await next_one
    free()
    free_next()
    assert room.num_leases == 0
