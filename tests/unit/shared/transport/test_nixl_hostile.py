"""Callers that do not keep to the lane's order: each is refused, and nothing of them is left."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio
import pytest

from protos.tandem.v1 import transfer_pb2
from shared.rpc.channel import open_channel
from shared.transport.base import Grant
from shared.transport.greeting import token_metadata
from shared.transport.nixl_wire import NAME
from tests.support.transfer_parts import TOKEN, Receiver, needs_nixl, receiver
from tests.support.waiting import until

pytestmark = needs_nixl

ATTACH = "/tandem.v1.TransferService/Attach"
LANE = "/tandem.v1.TransferService/Lane"


def opening(grant: Grant, *, transport: str = NAME) -> bytes:
    message = transfer_pb2.LaneOpen(
        transport=transport, slot=grant.slot, generation=grant.generation
    )
    return transfer_pb2.LaneRequest(open=message).SerializeToString()


def end(chunks: int, nbytes: int) -> bytes:
    message = transfer_pb2.LaneEnd(chunks=chunks, bytes=nbytes)
    return transfer_pb2.LaneRequest(end=message).SerializeToString()


def beat(sequence: int) -> bytes:
    message = transfer_pb2.LaneHeartbeat(sequence=sequence)
    return transfer_pb2.LaneRequest(heartbeat=message).SerializeToString()


EMPTY = transfer_pb2.LaneRequest().SerializeToString()
GOODBYE = transfer_pb2.LaneRequest(drained=transfer_pb2.LaneDrained()).SerializeToString()


async def lane(channel: grpc.aio.Channel, grant: Grant, messages: list[bytes]) -> grpc.StatusCode:
    """Status of a lane that says these things and falls silent."""

    async def say() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(LANE)
    call = method(say(), metadata=token_metadata(grant))
    try:
        async for _ in call:
            continue
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def assert_alive(side: Receiver) -> None:
    lease, grant = side.grant(100)
    sender = side.transport.sender()
    await sender.open(address=side.address, grant=grant)
    await sender.write(0, b"z" * 100)
    await sender.seal()
    assert side.bytes_of(lease) == b"z" * 100


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [EMPTY],
        [beat(1)],
        [b"\xff\xff noise"],
        ["open", b"\xff\xff noise"],
        ["open"],
        ["open", "open"],
        ["open", end(1, 100)],
        ["open", end(2**63, 2**63)],
        ["other transport"],
    ],
    ids=str,
)
async def test_a_lane_out_of_order_is_refused(
    messages: list[bytes | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.transport.nixl_lane.SETTLE_SECONDS", 0.05)
    async with receiver("nixl") as side, open_channel(side.address) as channel:
        _, grant = side.grant(100)
        words = {"open": opening(grant), "other transport": opening(grant, transport="pigeon")}
        said = [words[m] if isinstance(m, str) else m for m in messages]
        code = await lane(channel, grant, said)
        assert code in {grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT}, code
        assert side.direct is not None
        assert side.direct.num_lanes == 0
        assert True not in side.writer.closed
        assert len(side.writer.closed) == int("open" in messages)
        await assert_alive(side)


async def test_lanes_of_chance_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.transport.nixl_lane.SETTLE_SECONDS", 0.01)
    draw = random.Random(3)
    async with receiver("nixl") as side, open_channel(side.address) as channel:
        lease, grant = side.grant(100)
        opened = 0
        for _ in range(80):
            words = [EMPTY, GOODBYE, beat(draw.getrandbits(64)), end(0, 0), end(1, 1), b"\x0a\x05"]
            messages = [draw.choice(words) for _ in range(draw.randrange(5))]
            if draw.random() < 0.7:
                messages.insert(0, opening(grant))
                opened += 1
            await lane(channel, grant, messages)
        await until(lambda: len(side.writer.closed) == opened)
        assert side.direct is not None
        assert side.direct.num_lanes == 0
        assert side.bytes_of(lease) == bytes(100)
        await assert_alive(side)


async def test_attach_shows_its_metadata_to_holders_of_a_grant_only() -> None:
    async with receiver("nixl") as side, open_channel(side.address) as channel:
        _, grant = side.grant(100)
        assert side.direct is not None
        request = transfer_pb2.AttachRequest(
            transport=NAME,
            fingerprint=side.direct.offer.fingerprint,
            slot=grant.slot,
            generation=grant.generation,
        ).SerializeToString()
        attach: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ATTACH)
        for token in (b"", TOKEN[:-1]):
            stranger = replace(grant, token=token)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await attach(request, metadata=token_metadata(stranger), timeout=10)
            assert refused.value.code() is grpc.StatusCode.ABORTED
        answer = await attach(request, metadata=token_metadata(grant), timeout=10)
        assert transfer_pb2.AttachResponse.FromString(answer).metadata
