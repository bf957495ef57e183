"""Every transport in bad company: odd sizes, damage, cancelled writers, killed processes."""

import asyncio
import math
import struct

import pytest

from shared.errors import HandoffError, StaleWriteError
from shared.transport import grpc_stream
from shared.transport.base import Grant
from shared.transport.frames import FrameKind, encode_frame
from tests.support.transfer_parts import (
    COPYING,
    INCARNATION,
    MODEL,
    TOKEN,
    Receiver,
    each_transport,
    receiver,
)
from tests.support.transfer_process import sending, transfer_process
from tests.support.waiting import until

MIB = 2**20
NAN = struct.pack("<f", math.nan)


def poison(end: Receiver) -> None:
    """Fills the slab with NaN, so that a byte nobody wrote cannot pass for one."""
    end.slab.memory.store(0, memoryview(NAN * (end.slab.total_bytes // 4)))


@each_transport()
@pytest.mark.parametrize("nbytes", [1, 63, 4_097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 33 * MIB + 5])
async def test_a_lease_of_any_size_is_filled_and_its_neighbours_are_not(
    name: str, nbytes: int
) -> None:
    payload = bytes(range(251)) * (nbytes // 251 + 1)
    async with receiver(name, slab_bytes=nbytes + 1_024) as end:
        poison(end)
        before, _ = end.grant(256)
        lease, grant = end.grant(nbytes)
        after, _ = end.grant(256)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, memoryview(payload)[:nbytes])
        assert (await sender.seal()).bytes == nbytes
        assert end.bytes_of(lease) == payload[:nbytes]
        assert end.bytes_of(before) == end.bytes_of(after) == NAN * 64


@each_transport()
async def test_bytes_that_nobody_sent_stay_as_they_were(name: str) -> None:
    async with receiver(name) as end:
        poison(end)
        lease, grant = end.grant(4_096)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(1_024, b"x" * 1_024)
        await sender.seal()
        assert end.bytes_of(lease) == NAN * 256 + b"x" * 1_024 + NAN * 512


@pytest.mark.parametrize("name", COPYING)
async def test_a_lease_that_is_granted_anew_at_once_is_untouched(name: str) -> None:
    """Where the receiver does not copy, peers must be still before bytes are granted anew."""
    async with receiver(name) as end:
        first, sender = await end.half_written(b"1" * 100)
        end.slab.quarantine(first.slot, first.generation)
        end.slab.release(first.slot, first.generation)
        second, _ = end.grant(100)
        assert (second.slot, second.offset) == (first.slot, first.offset)
        with pytest.raises(StaleWriteError):
            await write_for_ever(sender, b"x" * 100)
        await sender.abort()
        assert end.bytes_of(second) == b"1" * 50 + bytes(50)


@each_transport(without=("loopback",))
async def test_damaged_bytes_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver(name) as end:
        lease, sender = await end.half_written(b"x" * 1_000)
        damage(end, name, monkeypatch, at=lease.offset + 500)
        with pytest.raises(HandoffError, match="checksum"):  # noqa: PT012  at the one or the other
            await sender.write(500, b"x" * 500)
            await sender.seal()
        await sender.abort()
        await until(lambda: end.writer.closed == [False])


def damage(end: Receiver, name: str, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """Changes a byte after its chunk's checksum was taken and before it is compared."""
    if name == "grpc":
        encode = encode_frame

        def damaged(kind: FrameKind, **fields) -> bytes:
            frame = bytearray(encode(kind, **fields))
            if kind is FrameKind.DATA:
                frame[-1] ^= 1
            return bytes(frame)

        monkeypatch.setattr(grpc_stream, "encode_frame", damaged)
        return
    assert name not in COPYING

    def change() -> None:
        end.slab.memory.store(at, memoryview(b"!"))

    end.writer.before_write = change


@each_transport(without=("loopback",))
async def test_a_writer_that_is_cancelled_is_still_after_its_abort(name: str) -> None:
    async with receiver(name, slab_bytes=64 * MIB) as end:
        _, grant = end.grant(64 * MIB)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        landed = asyncio.Event()
        end.writer.before_write = landed.set
        writing = asyncio.create_task(sender.write(0, bytes(64 * MIB)))
        await landed.wait()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await sender.abort()
        await until(lambda: end.writer.closed == [False])
        assert end.writer.drained == [True]


@each_transport(without=("loopback",))
async def test_a_receiver_that_is_killed_ends_the_transfer_and_nothing_else(name: str) -> None:
    async with receiver(name, slab_bytes=MIB) as other:
        with transfer_process("receive", name, str(8 * MIB)) as child:
            assert child.stdout is not None
            address, slot, generation = (await asyncio.to_thread(child.stdout.readline)).split()
            sender = other.transport.sender()
            grant = Grant(
                slot=int(slot),
                generation=int(generation),
                incarnation=INCARNATION,
                token=TOKEN,
                lease_ms=60_000,
            )
            await sender.open(address=address, grant=grant)
            await sender.write(0, bytes(8 * MIB))
            child.kill()
            with pytest.raises(HandoffError):
                await write_for_ever(sender, bytes(MIB))
            with pytest.raises(HandoffError):
                await sender.seal()
            await sender.abort()
        lease, grant = other.grant(1_000)
        sender = other.transport.sender()
        await sender.open(address=other.address, grant=grant)
        await sender.write(0, b"y" * 1_000)
        await sender.seal()
        assert other.bytes_of(lease) == b"y" * 1_000


@each_transport(without=("loopback",))
async def test_a_sender_that_is_killed_is_noticed(name: str) -> None:
    async with receiver(name, slab_bytes=8 * MIB) as end:
        lease, grant = end.grant(4 * MIB)
        child_does = sending(name, end.address, 4 * MIB, grant=grant, model=MODEL)
        with transfer_process(*child_does) as child:
            assert child.stdout is not None
            await asyncio.to_thread(child.stdout.readline)
            child.kill()
            await until(lambda: end.writer.closed == [False])
        assert end.bytes_of(lease)[:1] == bytes([7])
        # What a dead process wrote is only known to be over where the receiver copied it.
        assert end.writer.drained == [name in COPYING]


async def write_for_ever(sender, data: bytes) -> None:
    async with asyncio.timeout(60):
        while True:
            await sender.write(0, data)
            await asyncio.sleep(0.01)
