"""A canary over every transport: it arrives and is timed, or says what is wrong with the link."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shared.errors import OverloadedError, StaleWriteError, TandemError, TransportError
from shared.transport import canary, probe_ground
from shared.transport.base import Grant, KvSender, KvTransport
from shared.transport.hello import Peer
from shared.transport.probe_calls import GrpcProbeCalls
from shared.transport.probe_ground import FIRST_PROBE_SLOT, PROBE_BYTES, PROBE_ROOMS
from tests.support.faulty_transport import Fault, FaultyTransport
from tests.support.transfer_parts import INCARNATION, MODEL, Receiver, each_transport, receiver

pytestmark = each_transport(without=["loopback"])  # canaries are asked for by calls


@asynccontextmanager
async def calls() -> AsyncIterator[GrpcProbeCalls]:
    made = GrpcProbeCalls(Peer(model=MODEL, incarnation="sender-1"))
    try:
        yield made
    finally:
        await made.shut()


async def fly(
    end: Receiver, asked: GrpcProbeCalls, transport: KvTransport, *, longest_s: float = 20.0
) -> canary.CanaryFlight | None:
    return await canary.fly_canary(transport, address=end.address, calls=asked, longest_s=longest_s)


async def send(sender: KvSender, data: bytes, *, end: Receiver, grant: Grant) -> None:
    """By `grpc` a refusal may come late, by `nixl` at once."""
    await sender.open(address=end.address, grant=grant)
    await sender.write(0, data)
    await sender.seal()


def rooms(end: Receiver) -> int:
    assert end.probes is not None
    return end.probes.num_open


async def test_a_canary_arrives_beside_the_slab_and_leaves_nothing(name: str) -> None:
    async with receiver(name) as end, calls() as asked:
        lease, _ = end.grant(end.slab.total_bytes)
        before = end.bytes_of(lease)
        for _ in range(PROBE_ROOMS + 2):
            flight = await fly(end, asked, end.transport)
            assert flight is not None
            assert flight.gbps > 0
            assert rooms(end) == 0
        assert end.bytes_of(lease) == before
        assert end.slab.num_leases == 1
        end.slab.check_integrity()
        assert end.writer.closed == []


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault.REFUSE, canary.FAILED),
        (Fault.BREAK, canary.FAILED),
        (Fault.DROP, canary.DAMAGED),
        (Fault.CORRUPT, canary.DAMAGED),
        (Fault.STALL, canary.TOO_SLOW),
    ],
)
async def test_every_fault_of_a_link_has_its_name(name: str, fault: Fault, code: str) -> None:
    async with receiver(name) as end, calls() as asked:
        faulty = FaultyTransport(end.transport, name, fault=fault)
        with pytest.raises(TransportError) as raised:
            await fly(end, asked, faulty, longest_s=0.3 if fault is Fault.STALL else 20.0)
        assert raised.value.error_code == code
        assert name in raised.value.message
        assert rooms(end) == 0
        assert not faulty.open_senders
        faulty.fault = Fault.NONE
        assert await fly(end, asked, faulty) is not None


async def test_a_canary_waits_for_nobody_when_all_rooms_are_held(name: str) -> None:
    async with receiver(name) as end, calls() as asked:
        held = [await asked.open(end.address, PROBE_BYTES) for _ in range(PROBE_ROOMS)]
        with pytest.raises(OverloadedError):
            await fly(end, asked, end.transport)
        first = held[0]
        assert first is not None
        await asked.close(end.address, first)
        assert await fly(end, asked, end.transport) is not None


async def test_a_room_is_for_who_asked_for_it(name: str) -> None:
    async with receiver(name) as end, calls() as asked:
        grant = await asked.open(end.address, PROBE_BYTES)
        assert grant is not None
        assert grant.incarnation == INCARNATION
        for other in (
            replace(grant, token=b"guessed"),
            replace(grant, generation=grant.generation + 1),
            replace(grant, slot=FIRST_PROBE_SLOT + PROBE_ROOMS),
            replace(grant, slot=2**32 - 1),
        ):
            sender = end.transport.sender()
            with pytest.raises(TandemError):
                await send(sender, b"x", end=end, grant=other)
            await sender.abort()
            with pytest.raises(StaleWriteError):
                await asked.close(end.address, other)
        assert rooms(end) == 1
        await asked.close(end.address, grant)
        with pytest.raises(StaleWriteError):
            await asked.close(end.address, grant)


async def test_no_byte_leaves_its_room(name: str) -> None:
    async with receiver(name) as end, calls() as asked:
        small = await asked.open(end.address, 100)
        assert small is not None
        sender = end.transport.sender()
        with pytest.raises(StaleWriteError):
            await send(sender, b"x" * 101, end=end, grant=small)
        await sender.abort()


@pytest.mark.parametrize("length", [0, PROBE_BYTES + 1])
async def test_a_canary_has_a_size(name: str, length: int) -> None:
    assert probe_ground.SPARE_BYTES == PROBE_ROOMS * PROBE_BYTES
    async with receiver(name) as end, calls() as asked:
        with pytest.raises(TandemError, match="canary of"):
            await asked.open(end.address, length)
