"""Faults on demand around every transport: each does what its name says, and nothing else."""

import itertools

import pytest

from shared.errors import TransportError
from shared.transport.fault_plan import (
    CHUNK_KINDS,
    CHUNK_MOMENTS,
    Fault,
    FaultKind,
    ListedFaults,
    Moment,
)
from shared.transport.faulty import FaultyTransport
from tests.support.transfer_parts import Receiver, each_transport, receiver, registered
from tests.support.waiting import until

CHUNK = 1_000
PAYLOAD = bytes(index * 7 % 251 for index in range(5 * CHUNK))
BEFORE = 0xEE
"""What the slab is full of before."""

PLACES = {Moment.FIRST: 0, Moment.MIDDLE: 1, Moment.LAST: 4}
"""Chunk of each moment that has one."""

CHUNK_FAULTS = [
    Fault(kind=kind, moment=moment)
    for kind, moment in itertools.product(
        sorted(CHUNK_KINDS, key=lambda kind: kind.value),
        sorted(CHUNK_MOMENTS, key=lambda moment: moment.value),
    )
]


async def send(end: Receiver, *faults: Fault | None, lease_ms: int = 30_000) -> tuple[bytes, int]:
    """Sends the payload; returns what landed and how many faults were made.

    Two lengths of writes, so that chunks are cut from long ones and short ones are chunks.
    """
    made: list[Fault] = []
    transport = FaultyTransport(
        end.transport, ListedFaults(*faults), on_fault=made.append, chunk_bytes=CHUNK
    )
    lease, grant = end.grant(len(PAYLOAD), lease_ms=lease_ms)
    end.slab.write(
        slot=lease.slot,
        generation=lease.generation,
        offset=0,
        data=bytes([BEFORE]) * len(PAYLOAD),
    )
    sender = transport.sender()
    try:
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, memoryview(PAYLOAD)[: 3 * CHUNK])
        await sender.write(3 * CHUNK, PAYLOAD[3 * CHUNK : 4 * CHUNK])
        await sender.write(4 * CHUNK, PAYLOAD[4 * CHUNK :])
        await sender.seal()
        return end.bytes_of(lease), len(made)
    finally:
        await sender.abort()
        assert made == [fault for fault in faults[:1] if fault is not None]
        end.slab.release(lease.slot, lease.generation)


@each_transport()
async def test_a_plan_without_faults_changes_nothing(name: str) -> None:
    async with receiver(name) as end:
        assert FaultyTransport(end.transport, ListedFaults()).name == registered(name)
        assert await send(end) == (PAYLOAD, 0)
        assert await send(end, None) == (PAYLOAD, 0)
        assert end.writer.closed == [True, True]


@each_transport()
async def test_a_fault_of_a_chunk_is_in_that_chunk_and_nobody_is_told(name: str) -> None:
    async with receiver(name) as end:
        for fault in CHUNK_FAULTS:
            start = PLACES[fault.moment] * CHUNK
            landed, made = await send(end, fault)
            rest = landed[:start] + landed[start + CHUNK :]
            assert made == 1, fault
            assert rest == PAYLOAD[:start] + PAYLOAD[start + CHUNK :], fault
            check_chunk(
                fault.kind, landed[start : start + CHUNK], whole=PAYLOAD[start : start + CHUNK]
            )
        assert end.writer.closed == [True] * len(CHUNK_FAULTS)
        assert (await send(end))[0] == PAYLOAD, "the next transfer is a good one"


def check_chunk(kind: FaultKind, chunk: bytes, *, whole: bytes) -> None:
    """Compares what landed with what such a fault makes of a chunk."""
    nothing = bytes([BEFORE]) * CHUNK
    match kind:
        case FaultKind.DUPLICATE:
            assert chunk == whole
        case FaultKind.DROP:
            assert chunk == nothing
        case FaultKind.TRUNCATE:
            assert chunk == whole[: CHUNK // 2] + nothing[CHUNK // 2 :]
        case _:
            wrong = [i for i in range(CHUNK) if chunk[i] != whole[i]]
            assert wrong == [CHUNK // 2]


@each_transport()
@pytest.mark.parametrize("moment", Moment)
async def test_a_cut_is_told_here_and_seen_there(name: str, moment: Moment) -> None:
    async with receiver(name) as end:
        with pytest.raises(TransportError, match=rf"cut on purpose \(kill@{moment.value}\)"):
            await send(end, Fault(kind=FaultKind.KILL, moment=moment))
        arrived = moment is Moment.ACK
        assert (await send(end))[0] == PAYLOAD, "the connection of others goes on"
        await until(lambda: end.writer.closed.count(True) == 1 + arrived)
        # A call may be cancelled before its server has looked at it: then nothing was opened.
        assert end.writer.closed.count(False) <= (not arrived), "what was cut looks complete never"
        assert all(end.writer.drained), "and nothing of it is under way"


@each_transport()
async def test_a_delay_costs_time_and_no_lease(name: str) -> None:
    fault = Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=0.6)
    async with receiver(name) as end:
        await send(end)
        end.writer.heartbeats = 0
        assert (await send(end, fault, lease_ms=1_500))[0] == PAYLOAD
        assert end.writer.heartbeats > 0, "it stands still and keeps its lease"
        assert end.writer.closed == [True, True]


@each_transport()
async def test_an_only_chunk_is_first_and_last_and_its_buffer_is_free_at_once(name: str) -> None:
    async with receiver(name) as end:
        for kind, moment, landed in (
            (FaultKind.DROP, Moment.FIRST, bytes(10)),
            (FaultKind.DROP, Moment.LAST, bytes(10)),
            (FaultKind.DUPLICATE, Moment.LAST, b"a" * 10),
        ):
            plan = ListedFaults(Fault(kind=kind, moment=moment))
            sender = FaultyTransport(end.transport, plan).sender()
            lease, grant = end.grant(10)
            await sender.open(address=end.address, grant=grant)
            data = bytearray(b"a" * 10)
            await sender.write(0, memoryview(data))
            data[:] = b"b" * 10
            await sender.seal()
            assert end.bytes_of(lease) == landed
