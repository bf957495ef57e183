"""What only the NIXL transport has: fingerprints, leases kept on both sides, keys, late notices."""

import asyncio
import signal
from dataclasses import replace

import pytest

from shared.errors import StaleWriteError, TransportError
from shared.transport.base import Grant, KvSender
from shared.transport.nixl import NixlTransport
from shared.transport.nixl_chunks import DirectWrite
from shared.transport.nixl_lane import Lane
from shared.transport.nixl_receiver import NixlReceiver
from shared.transport.nixl_wire import KEY_BYTES, Notice, encode_notice
from tests.support.transfer_parts import (
    INCARNATION,
    TOKEN,
    Receiver,
    needs_nixl,
    receiver,
)
from tests.support.transfer_process import transfer_process
from tests.support.waiting import until

pytestmark = needs_nixl

MIB = 2**20


def transport_of(end: Receiver) -> NixlTransport:
    assert isinstance(end.transport, NixlTransport)
    return end.transport


def direct_of(end: Receiver) -> NixlReceiver:
    assert end.direct is not None
    return end.direct


async def written(sender: KvSender, offset: int, data: bytes) -> None:
    await sender.write(offset, data)
    await sender.seal()


async def test_another_fingerprint_is_refused_before_metadata_is_asked_for(monkeypatch) -> None:
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        asked: list[object] = []
        monkeypatch.setattr(NixlReceiver, "attach", lambda *parts: asked.append(parts))
        transport_of(end).agent.fingerprint = "of another version"
        with pytest.raises(TransportError, match="another fingerprint"):
            await end.transport.sender().open(address=end.address, grant=grant)
        assert asked == []


async def test_a_receiver_checks_the_fingerprint_too(monkeypatch) -> None:
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        transport = transport_of(end)
        transport.agent.fingerprint = "of another version"
        monkeypatch.setattr(NixlTransport, "_check_fingerprint", lambda *_: None)
        with pytest.raises(TransportError, match="another fingerprint"):
            await transport.sender().open(address=end.address, grant=grant)


async def test_a_worker_without_nixl_is_named() -> None:
    async with receiver("nixl") as end, receiver("grpc") as plain:
        _, grant = plain.grant(100)
        with pytest.raises(TransportError, match="does not take nixl writes"):
            await end.transport.sender().open(address=plain.address, grant=grant)


async def test_a_defect_in_one_handoff_ends_no_other() -> None:
    def broken() -> None:
        raise RuntimeError("a defect")

    async with receiver("nixl") as end:
        lease, other = await end.half_written(b"o" * 100)
        await until(lambda: end.writer.arrivals == [(0, 50)])
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        end.writer.before_write = broken
        with pytest.raises(StaleWriteError, match="by a defect of this worker"):
            await written(sender, 0, b"z" * 100)
        await sender.abort()
        end.writer.before_write = None
        await other.write(50, b"o" * 50)
        await other.seal()
        assert end.bytes_of(lease) == b"o" * 100


async def test_lanes_hear_that_nobody_listens_and_the_next_is_listened_to(monkeypatch) -> None:
    async with receiver("nixl") as end:
        _, sender = await end.half_written(b"o" * 100)
        await until(lambda: end.writer.arrivals == [(0, 50)])
        with monkeypatch.context() as patch:
            patch.setattr(NixlReceiver, "_hear", lambda *_: 1 / 0)
            with pytest.raises(StaleWriteError, match="stopped hearing what landed"):
                await written(sender, 50, b"o" * 50)
        await sender.abort()
        lease, sender = await end.half_written(b"n" * 100)
        await sender.write(50, b"n" * 50)
        await sender.seal()
        assert end.bytes_of(lease) == b"n" * 100


async def test_one_attachment_serves_many_handoffs() -> None:
    async with receiver("nixl") as end:
        for _ in range(3):
            lease, grant = end.grant(100)
            sender = end.transport.sender()
            await sender.open(address=end.address, grant=grant)
            await sender.write(0, b"z" * 100)
            await sender.seal()
            assert end.bytes_of(lease) == b"z" * 100
        assert len(transport_of(end)._attached) == 1
        assert direct_of(end).num_lanes == 0


async def test_a_peer_that_was_forgotten_is_attached_anew() -> None:
    async with receiver("nixl") as end:
        for _ in range(2):
            lease, grant = end.grant(100)
            sender = end.transport.sender()
            await sender.open(address=end.address, grant=grant)
            await sender.write(0, b"z" * 100)
            await sender.seal()
            assert end.bytes_of(lease) == b"z" * 100
            await transport_of(end).lost(end.address)


async def test_a_sender_stops_by_itself_when_nobody_renews_its_lease(monkeypatch) -> None:
    """The receiver cannot refuse what is written directly, so the sender must know the time."""
    monkeypatch.setattr(Lane, "_hear_heartbeat", lambda *_: None)
    async with receiver("nixl") as end:
        lease, grant = end.grant(100, lease_ms=200)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(StaleWriteError, match="not renewed in time"):
            await write_for_ever(sender, b"1" * 50)
        end.slab.view(lease.slot, lease.generation, 0, 50)[:] = b"2" * 50
        with pytest.raises(StaleWriteError):
            await sender.write(0, b"3" * 50)
        await sender.abort()
        assert end.bytes_of(lease)[:50] == b"2" * 50


async def write_for_ever(sender, data: bytes) -> None:
    async with asyncio.timeout(20):
        while True:
            await sender.write(0, data)
            await asyncio.sleep(0.02)


async def test_a_refused_sender_that_is_idle_gives_the_slot_back_at_once() -> None:
    async with receiver("nixl") as end:
        lease, grant = end.grant(100, lease_ms=300)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x" * 50)
        end.slab.quarantine(lease.slot, lease.generation)
        await until(lambda: end.writer.closed == [False])  # its next heartbeat is refused
        assert end.writer.drained == [True]
        with pytest.raises(StaleWriteError, match="in quarantine"):
            await sender.write(50, b"x")
        await sender.abort()


async def test_notices_with_an_unknown_key_or_another_lease_count_for_nothing() -> None:
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x" * 10)
        direct = direct_of(end)
        [lane] = direct._lanes.values()
        notice = Notice(
            key=b"k" * KEY_BYTES,
            slot=grant.slot,
            generation=grant.generation,
            offset=0,
            length=10,
            crc32=0,
        )
        direct._hear(encode_notice(notice))
        direct._hear(b"noise")
        assert direct.late_notices == 1
        lane.landed(replace(notice, key=lane.key, generation=grant.generation + 1))
        with pytest.raises(StaleWriteError, match="serves one lease"):
            await sender.seal()
        await sender.abort()


async def test_lost_notices_are_not_taken_for_success(monkeypatch) -> None:
    monkeypatch.setattr("shared.transport.nixl_lane.SETTLE_SECONDS", 0.1)
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        monkeypatch.setattr(Lane, "landed", lambda *_: None)
        await sender.write(0, b"x" * 10)
        with pytest.raises(TransportError, match="notices were lost"):
            await sender.seal()
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True]


async def test_a_write_to_a_stranger_fails_and_leaves_no_slot_taken() -> None:
    async with receiver("nixl") as end:
        agent = transport_of(end).agent
        free = len(agent._slots)
        write = DirectWrite(address=0, data=memoryview(b"x"), notice=lambda _: b"n")
        for _ in range(2 * free):
            with pytest.raises(TransportError, match="could not be written"):
                await agent.write("nobody", [write], may_go=lambda: None)
        assert len(agent._slots) == free


async def test_a_peer_that_hangs_fails_one_call_and_holds_up_nobody_else(monkeypatch) -> None:
    monkeypatch.setattr("shared.transport.nixl_agent.WRITE_SECONDS", 0.5)
    async with receiver("nixl") as end:
        agent = transport_of(end).agent
        free = len(agent._slots)
        with transfer_process("receive", "nixl", str(8 * MIB)) as child:
            assert child.stdout is not None
            address, slot, generation = (await asyncio.to_thread(child.stdout.readline)).split()
            grant = Grant(
                slot=int(slot), generation=int(generation), incarnation=INCARNATION, token=TOKEN
            )
            sender = end.transport.sender()
            await sender.open(address=address, grant=grant)
            await sender.write(0, bytes(MIB))
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(TransportError):
                await write_for_ever(sender, bytes(8 * MIB))
            await sender.abort()
            lease, own = end.grant(100)
            sender = end.transport.sender()
            await sender.open(address=end.address, grant=own)
            await sender.write(0, b"z" * 100)
            await sender.seal()
            assert end.bytes_of(lease) == b"z" * 100
        assert len(agent._slots) == free


async def test_a_closed_transport_says_so() -> None:
    async with receiver("nixl") as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await end.transport.close()
        with pytest.raises(TransportError):
            await sender.write(0, b"x" * 10)
        await sender.abort()
