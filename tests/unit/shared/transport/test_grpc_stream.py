"""What only the gRPC transport can get wrong: streams, credits, corruption, peers that die."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from protos.tandem.v1 import transfer_pb2, transfer_pb2_grpc
from shared.errors import ConfigError, StaleWriteError, TransportError
from shared.rpc.channel import open_channel
from shared.rpc.server import build_server
from shared.rpc.status import error_from_rpc
from shared.transport.base import MIN_CHUNK_BYTES, Grant, KvSender, TransportContext
from shared.transport.frames import FrameKind, encode_frame
from shared.transport.greeting import TOKEN_KEY
from shared.transport.grpc_stream import GrpcSender, GrpcTransport
from shared.wire.identity import identity_to_pb
from tests.support.transfer_parts import INCARNATION, MODEL, TOKEN, Receiver, receiver
from tests.support.waiting import until


async def _push(end: Receiver, messages: list[bytes]) -> list[transfer_pb2.PushResponse]:
    """Sends raw messages as a foreign client would."""

    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    channel = open_channel(end.address, own_connection=True)
    try:
        method: Any = channel.stream_stream(
            "/tandem.v1.TransferService/Push",
            response_deserializer=transfer_pb2.PushResponse.FromString,
        )
        metadata = ((TOKEN_KEY, TOKEN),)
        return [answer async for answer in method(requests(), metadata=metadata)]
    finally:
        await channel.close()


async def _refused(end: Receiver, messages: list[bytes]) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _push(end, messages)
    return error_from_rpc(caught.value)


def _frame(grant: Grant, kind: FrameKind, *, offset: int = 0, payload: bytes = b"") -> bytes:
    return encode_frame(
        kind, slot=grant.slot, generation=grant.generation, offset=offset, payload=payload
    )


async def test_a_generated_stub_can_push() -> None:
    async with receiver("grpc") as end:
        lease, grant = end.grant(6)
        channel = open_channel(end.address)
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        hello = await stub.Hello(
            transfer_pb2.HelloRequest(protocol=1, model=identity_to_pb(MODEL), incarnation="x")
        )
        assert (hello.incarnation, hello.credits) == (INCARNATION, 8)
        raw = [
            _frame(grant, FrameKind.DATA, offset=2, payload=b"abcd"),
            _frame(grant, FrameKind.HEARTBEAT),
            _frame(grant, FrameKind.END),
        ]
        call = stub.Push(
            iter([transfer_pb2.PushRequest.FromString(m) for m in raw]),
            metadata=((TOKEN_KEY, TOKEN),),
        )
        answers = [answer async for answer in call]
        await channel.close()
        assert [(a.credits, a.written_bytes, a.drained) for a in answers] == [(0, 4, True)]
        assert end.bytes_of(lease) == b"\0\0abcd"


async def test_credits_come_back_half_a_window_at_a_time() -> None:
    async with receiver("grpc") as end:
        _, grant = end.grant(16)
        frames = [_frame(grant, FrameKind.DATA, offset=i, payload=b"x") for i in range(9)]
        answers = await _push(end, [*frames, _frame(grant, FrameKind.END)])
        assert [(a.credits, a.written_bytes) for a in answers] == [(4, 4), (4, 8), (0, 9)]


async def test_a_corrupt_frame_is_refused_and_not_written() -> None:
    async with receiver("grpc") as end:
        lease, grant = end.grant(8)
        message = bytearray(_frame(grant, FrameKind.DATA, payload=b"abcdefgh"))
        message[-1] ^= 1
        error = await _refused(end, [bytes(message)])
        assert isinstance(error, TransportError)
        assert "checksum" in str(error)
        assert end.bytes_of(lease) == bytes(8)


async def test_a_stream_without_an_end_frame_is_not_clean() -> None:
    async with receiver("grpc") as end:
        _, grant = end.grant(8)
        error = await _refused(end, [_frame(grant, FrameKind.DATA, payload=b"abc")])
        assert isinstance(error, TransportError)
        assert end.writer.closed == [False]


async def test_a_stream_serves_one_lease() -> None:
    async with receiver("grpc") as end:
        _, first = end.grant(8)
        _, second = end.grant(8)
        frames = [_frame(grant, FrameKind.DATA, payload=b"abc") for grant in (first, second)]
        assert isinstance(await _refused(end, frames), StaleWriteError)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6])
async def test_the_reason_of_a_refusal_survives_a_write_under_way(frames: int) -> None:
    async with receiver("grpc", slab_bytes=40 * 2**20) as end:
        left = itertools.count(frames, -1)

        def refuse(**_chunk: object) -> None:
            if next(left) == 0:
                raise StaleWriteError("the lease ran out: too slow; start a new attempt")

        end.writer.write = refuse  # type: ignore[method-assign]
        _, grant = end.grant(30 * 2**20)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(StaleWriteError, match="the lease ran out"):
            await sender.write(0, bytes(30 * 2**20))
        await sender.abort()


async def test_hello_names_another_protocol() -> None:
    async with receiver("grpc") as end:
        channel = open_channel(end.address)
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Hello(transfer_pb2.HelloRequest(protocol=2, model=identity_to_pb(MODEL)))
        await channel.close()
        assert "protocol 1 here, 2 there" in str(error_from_rpc(caught.value))


async def test_long_writes_are_cut_into_chunks() -> None:
    payload = bytes(range(256)) * 4 * 2**10 * 3
    async with receiver("grpc", slab_bytes=2 * len(payload)) as end:
        sizes: list[int] = []
        write = end.writer.write

        def measured(*, slot: int, generation: int, offset: int, data: memoryview) -> None:
            sizes.append(data.nbytes)
            write(slot=slot, generation=generation, offset=offset, data=data)

        end.writer.write = measured  # type: ignore[method-assign]
        lease, grant = end.grant(len(payload))
        context = TransportContext(model=MODEL, incarnation="s", chunk_bytes=MIN_CHUNK_BYTES)
        transport = GrpcTransport(context)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, payload)
        await sender.seal()
        await transport.close()
        assert sizes == [MIN_CHUNK_BYTES] * 3
        assert end.bytes_of(lease) == payload


@pytest.mark.parametrize("chunk_bytes", [0, MIN_CHUNK_BYTES - 1, 4 * 2**20 + 1])
def test_chunk_size_is_bounded(chunk_bytes: int) -> None:
    with pytest.raises(ConfigError, match="chunk_bytes"):
        TransportContext(model=MODEL, incarnation="s", chunk_bytes=chunk_bytes)


class _SilentPeer:
    """Says hello, then reads frames only when told to."""

    def __init__(self, *, credits: int = 3) -> None:  # noqa: A002
        self.credits = credits
        self.go_on = asyncio.Event()
        self.frames = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        async def hello(request: transfer_pb2.HelloRequest, _context: object):
            answer = await _hello(request, None)
            answer.credits = self.credits
            return answer

        async def push(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            while (await context.read()) is not grpc.aio.EOF:
                self.frames += 1
                await self.go_on.wait()

        handlers = {
            "Hello": grpc.unary_unary_rpc_method_handler(
                hello,
                request_deserializer=transfer_pb2.HelloRequest.FromString,
                response_serializer=transfer_pb2.HelloResponse.SerializeToString,
            ),
            "Push": grpc.stream_stream_rpc_method_handler(push),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tandem.v1.TransferService", handlers),)
        )


async def _hello(request: transfer_pb2.HelloRequest, _context: object):
    return transfer_pb2.HelloResponse(
        protocol=1, model=request.model, incarnation="slow", credits=3, max_chunk_bytes=4 * 2**20
    )


async def test_a_slow_reader_holds_the_sender_back_at_its_credits() -> None:
    peer = _SilentPeer()
    server = build_server(host="127.0.0.1", port=0, service_names=[])
    peer.add_to(server.server)
    await server.start()
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    sender = transport.sender()
    await sender.open(address=server.address, grant=Grant(slot=0, generation=1))
    written = 0

    async def write_all() -> None:
        nonlocal written
        for index in range(20):
            await sender.write(index, b"x")
            written += 1

    task = asyncio.create_task(write_all())
    await until(lambda: written == 3)
    await asyncio.sleep(0.05)
    assert written == 3
    await sender.abort()
    with pytest.raises(TransportError, match="given up"):
        await task
    await transport.close()
    await server.stop()


async def test_cancelling_a_write_ends_the_transfer_and_not_the_caller() -> None:
    peer = _SilentPeer()
    server = build_server(host="127.0.0.1", port=0, service_names=[])
    peer.add_to(server.server)
    await server.start()
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    sender = transport.sender()
    await sender.open(address=server.address, grant=Grant(slot=0, generation=1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sender.write(0, bytes(60 * 2**20))
    await sender.abort()
    with pytest.raises(TransportError):
        await sender.write(0, b"x")
    await transport.close()
    await server.stop()


async def test_an_abort_reaches_a_write_that_the_network_holds_back() -> None:
    peer = _SilentPeer(credits=1_000)
    server = build_server(host="127.0.0.1", port=0, service_names=[])
    peer.add_to(server.server)
    await server.start()
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    sender = transport.sender()
    await sender.open(address=server.address, grant=Grant(slot=0, generation=1))
    task = asyncio.create_task(sender.write(0, bytes(200 * 2**20)))
    await until(lambda: peer.frames == 1)
    await asyncio.sleep(0.2)
    assert not task.done()
    await sender.abort()
    with pytest.raises(TransportError, match="given up"):
        await task
    await transport.close()
    await server.stop()


async def test_a_peer_that_vanishes_is_noticed_at_once() -> None:
    async with receiver("grpc") as end:
        assert end.server is not None
        _, grant = end.grant(1_000)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"x")
        await end.server.server.stop(0)
        with pytest.raises(TransportError, match="broke off"):
            await _write_for_ever(sender)
        await sender.abort()


async def test_a_torn_connection_is_noticed_at_once() -> None:
    async with receiver("grpc") as end:
        host, port = end.address.split(":")
        pairs: list[asyncio.StreamWriter] = []

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65_536):
                writer.write(data)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            pairs.extend((writer, far_writer))
            # The sender may connect again before the test ends: that pair is aborted by nobody.
            with contextlib.closing(writer), contextlib.closing(far_writer):
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        proxy_port = proxy.sockets[0].getsockname()[1]
        lease, grant = end.grant(1_000)
        sender = end.transport.sender()
        await sender.open(address=f"127.0.0.1:{proxy_port}", grant=grant)
        await sender.write(0, b"x")
        await until(lambda: end.bytes_of(lease)[:1] == b"x")
        for writer in pairs:
            writer.transport.abort()
        with pytest.raises(TransportError, match="broke off"):
            await _write_for_ever(sender)
        await until(lambda: end.writer.closed == [False])
        await sender.abort()
        proxy.close()


async def _write_for_ever(sender: KvSender) -> None:
    async with asyncio.timeout(20):
        while True:
            await sender.write(0, b"x")
            await asyncio.sleep(0.01)


async def test_an_address_where_nobody_listens_is_a_transport_error() -> None:
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    sender = transport.sender()
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
        await sender.open(address="127.0.0.1:9", grant=Grant(slot=0, generation=1))
    await sender.abort()
    await transport.close()


async def test_a_receiver_with_smaller_frames_is_refused() -> None:
    async def hello(request: transfer_pb2.HelloRequest, _context: object):
        answer = await _hello(request, None)
        answer.max_chunk_bytes = 1
        return answer

    server = build_server(host="127.0.0.1", port=0, service_names=[])
    handler = grpc.unary_unary_rpc_method_handler(
        hello,
        request_deserializer=transfer_pb2.HelloRequest.FromString,
        response_serializer=transfer_pb2.HelloResponse.SerializeToString,
    )
    server.server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tandem.v1.TransferService", {"Hello": handler}),)
    )
    await server.start()
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    with pytest.raises(TransportError, match="lower chunk_bytes"):
        await transport.sender().open(address=server.address, grant=Grant(slot=0, generation=1))
    await transport.close()
    await server.stop()


async def test_a_receiver_that_loses_bytes_is_noticed() -> None:
    async with receiver("grpc") as end:
        _, grant = end.grant(100)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, b"abc")
        assert isinstance(sender, GrpcSender)
        sender._sent_bytes += 1
        with pytest.raises(TransportError, match="wrote 3 of 4"):
            await sender.seal()
        await sender.abort()


async def test_a_receiver_that_ends_without_a_reason_is_a_transport_error() -> None:
    server = build_server(host="127.0.0.1", port=0, service_names=[])
    peer = _SilentPeer()
    peer.go_on.set()
    peer.add_to(server.server)
    await server.start()
    transport = GrpcTransport(TransportContext(model=MODEL, incarnation="s"))
    sender = transport.sender()
    await sender.open(address=server.address, grant=Grant(slot=0, generation=1))
    assert sender._call is not None
    await sender._call.done_writing()
    await until(lambda: sender._failure is not None)
    with pytest.raises(TransportError, match="without a reason"):
        await sender.write(0, b"x")
    await sender.abort()
    await transport.close()
    await server.stop()
