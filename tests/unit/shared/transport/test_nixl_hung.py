"""Registered memory that a write to a hung peer still reads is not lent to another prompt."""

import asyncio
import signal

import pytest

from prefill_service.engine.slab_room import SlabRoom
from shared.errors import TransportError
from shared.kv.memory import HostMemory, MemoryPart
from shared.transport.base import Grant, KvSender, TransportContext
from shared.transport.nixl import NixlTransport
from tests.support.transfer_parts import INCARNATION, MODEL, TOKEN, needs_nixl
from tests.support.transfer_process import transfer_process
from tests.support.waiting import until

pytestmark = needs_nixl

MIB = 2**20


async def write_for_ever(sender: KvSender, part: MemoryPart) -> None:
    async with asyncio.timeout(20):
        while True:
            await sender.write(0, part)


async def test_a_hung_write_keeps_its_source_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.transport.nixl_agent.WRITE_SECONDS", 0.5)
    room = SlabRoom(HostMemory(8 * MIB), make_room=lambda: False)
    transport = NixlTransport(
        TransportContext(model=MODEL, incarnation="sender-1", memory=room.memory, reads=room.reads)
    )
    try:
        with transfer_process("receive", "nixl", str(8 * MIB)) as child:
            assert child.stdout is not None
            address, slot, generation = (await asyncio.to_thread(child.stdout.readline)).split()
            grant = Grant(
                slot=int(slot), generation=int(generation), incarnation=INCARNATION, token=TOKEN
            )
            sender = transport.sender()
            await sender.open(address=address, grant=grant)
            part, give_back = await room._take(8 * MIB)
            await sender.write(0, part)
            assert room.reads.count == 0
            # The connection stays, so that only the write's own end can end it.
            monkeypatch.setattr(transport.agent, "_forget", lambda _peer: None)
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(TransportError):
                await write_for_ever(sender, part)
            await sender.abort()
            give_back()
            following = asyncio.create_task(room._take(8 * MIB))
            await asyncio.sleep(0.05)
            assert room.num_quarantined == 1
            assert not following.done(), "its bytes would go to where the first prompt's should"
            child.send_signal(signal.SIGCONT)
            async with asyncio.timeout(20):
                _, give_back = await following
            await until(lambda: not transport.agent._hung)
            give_back()
            assert (room.num_leases, room.reads.count) == (0, 0)
    finally:
        await transport.close()
