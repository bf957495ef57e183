"""Registered memory of the host: sent from where it lies, in pieces that the receiver sums."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from protos.tandem.v1 import transfer_pb2
from shared.errors import HandoffError
from shared.kv.memory import HostMemory, MemoryPart
from shared.transport import nixl_agent, nixl_patience, nixl_sender
from shared.transport.base import TransportContext, host_bytes, host_pieces
from shared.transport.nixl import NixlTransport
from shared.transport.nixl_agent import NixlAgent
from shared.transport.nixl_lane import Lane
from shared.transport.nixl_sender import NixlSender
from shared.transport.nixl_wire import Notice, NoticeCheck
from shared.types.kv_manifest import SegmentCheck
from tests.support.transfer_parts import MODEL, Receiver, needs_nixl, receiver

PIECE = 100_000


def filled(nbytes: int) -> HostMemory:
    memory = HostMemory(nbytes)
    memory.store(0, np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8).data)
    return memory


def transport_over(memory: HostMemory) -> NixlTransport:
    return NixlTransport(TransportContext(model=MODEL, incarnation="sender-1", memory=memory))


async def push(end: Receiver, transport: NixlTransport, part: MemoryPart) -> bytes:
    """What arrived."""
    lease, grant = end.grant(part.nbytes)
    sender = transport.sender()
    await sender.open(address=end.address, grant=grant)
    try:
        await sender.write(0, part)
        await sender.seal()
    finally:
        await sender.abort()
    return end.bytes_of(lease)


@needs_nixl
async def test_it_is_sent_without_a_copy_and_summed_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nixl_sender, "MAX_CHUNK_BYTES", PIECE)
    monkeypatch.setattr(NixlAgent, "_stage", None)  # nothing is staged
    heard: list[Notice] = []
    check = Lane._check

    def listen(lane: Lane, notice: Notice) -> None:
        heard.append(notice)
        check(lane, notice)

    monkeypatch.setattr(Lane, "_check", listen)
    memory = filled(1 << 20)
    async with receiver("nixl") as end:
        transport = transport_over(memory)
        part = MemoryPart(memory, 4096, 333_333)
        assert await push(end, transport, part) == bytes(part.on_host())
        assert transport.check is SegmentCheck.CRC32
        await transport.close()
    assert [notice.length for notice in heard] == [PIECE, PIECE, PIECE, 33_333]
    assert {notice.check for notice in heard} == {NoticeCheck.CRC32}


@needs_nixl
async def test_bytes_that_arrive_as_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = filled(1 << 20)
    async with receiver("nixl") as end:
        transport = transport_over(memory)
        monkeypatch.setattr(nixl_agent, "crc32", lambda _data: 1)
        with pytest.raises(HandoffError, match="checksum of 1048576 bytes"):
            await push(end, transport, MemoryPart(memory, 0, 1 << 20))
        assert end.writer.closed == [False]
        await transport.close()


@needs_nixl
async def test_a_lane_tells_what_landed_half_a_window_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nixl_sender, "MAX_CHUNK_BYTES", 1000)
    told: list[int] = []
    hear = NixlSender._hear

    async def listen(sender: NixlSender, answer: transfer_pb2.LaneResponse) -> None:
        if answer.HasField("progress"):
            told.append(answer.progress.chunks)
        await hear(sender, answer)

    monkeypatch.setattr(NixlSender, "_hear", listen)
    memory = filled(1 << 20)
    async with receiver("nixl") as end:
        assert end.direct is not None
        end.direct._credit_window = window = 8
        transport = transport_over(memory)
        part = MemoryPart(memory, 0, 100_000)
        assert await push(end, transport, part) == bytes(part.on_host())
        await transport.close()
    assert len(told) > 1  # more than one window was written
    assert all(late - early >= window // 2 for early, late in pairwise(told))


@needs_nixl
async def test_who_waits_for_notices_looks_at_once_when_hurried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nixl_patience, "FIRST_PAUSE_S", 3600.0)
    agent = NixlAgent("waits", HostMemory(4096))
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(agent.notices(wait_s=0.001))
        while not waiting.done():
            agent.hurry()
            await asyncio.sleep(0.01)
        assert await waiting == []
    await agent.close()


async def test_other_transports_read_it_in_place_too() -> None:
    memory = filled(4096)
    part = MemoryPart(memory, 10, 100)
    pieces = [piece async for piece in host_pieces(part)]
    assert [bytes(piece) for piece in pieces] == [bytes(part.on_host())]
    memory.store(10, memoryview(bytes([pieces[0][0] ^ 1])))  # seen through the piece
    assert bytes(pieces[0]) == bytes(await host_bytes(part)) == bytes(part.on_host())
