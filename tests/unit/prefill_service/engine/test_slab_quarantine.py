"""Leases of ended prompts that a transfer may still read: nobody else has them meanwhile."""

import asyncio

import pytest

from prefill_service.engine import slab_room
from prefill_service.engine.slab_room import SlabRoom
from shared.errors import OverloadedError
from shared.kv.memory import HostMemory

NBYTES = 4096


def new_room() -> SlabRoom:
    return SlabRoom(HostMemory(NBYTES), make_room=lambda: False)


async def test_a_lease_that_is_read_goes_to_the_next_prompt_after_the_read() -> None:
    room = new_room()
    part, give_back = await room._take(NBYTES)
    read = part.part(64, 64)
    room.reads.begin([read])
    give_back()
    assert (room.num_leases, room.num_quarantined, room.quarantined_bytes) == (1, 1, NBYTES)
    assert room.quarantine_facts == {"slabs": 1, "bytes": NBYTES}
    following = asyncio.create_task(room._take(NBYTES))
    await asyncio.sleep(0.01)
    assert not following.done()
    await asyncio.to_thread(room.reads.end, [read])  # as an agent's thread does
    _, give_back = await following
    give_back()
    assert (room.num_leases, room.num_quarantined, room.quarantines) == (0, 0, 1)


async def test_a_prompt_does_not_wait_for_ever_for_what_is_in_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slab_room, "QUARANTINE_WAIT_S", 0.01)
    room = new_room()
    part, give_back = await room._take(NBYTES)
    room.reads.begin([part])
    give_back()
    with pytest.raises(OverloadedError, match=r"4096 bytes .* in quarantine") as refused:
        await room._take(NBYTES)
    assert refused.value.error_code == "kv_quarantined"
    room.reads.end([part])
    await room._take(NBYTES)


async def test_what_nobody_reads_goes_back_at_once() -> None:
    room = new_room()
    _, give_back = await room._take(NBYTES // 2)
    other, _ = await room._take(NBYTES // 2)
    room.reads.begin([other])
    give_back()
    assert (room.num_leases, room.quarantines) == (1, 0)
