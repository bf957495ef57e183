"""What no gRPC client sends, to the methods that are not ours as well, and to no method at all."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from shared.rpc.server import RpcServer, build_server

HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
NO_MESSAGE = b"\xff\xff"


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    built = build_server(host="127.0.0.1", port=0, service_names=["tandem.v1.Probe"])
    await built.start()
    yield built
    await built.stop()


async def refusal(server: RpcServer, path: str, raw: bytes) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(server.address) as channel:
        method: Any = channel.stream_stream(path)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in method(iter([raw]), timeout=20):
                pass
    return refused.value


@pytest.mark.parametrize("path", [f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION])
async def test_a_message_that_cannot_be_read_is_its_senders_mistake(
    server: RpcServer, path: str
) -> None:
    with capture_logs() as logs:
        error = await refusal(server, path, NO_MESSAGE)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "2 bytes" in (error.details() or "")
    assert not logs


async def test_a_method_that_the_health_service_leaves_out_is_no_defect(server: RpcServer) -> None:
    with capture_logs() as logs:
        error = await refusal(server, f"{HEALTH}/List", b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not logs


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def call_of(path: bytes) -> bytes:
    """A whole HTTP/2 connection with one call of `path`, by hand: no client lets it through."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    head = b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields.items()
    )
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(4, 0, 0, b"")
        + frame(1, 4, 1, head)
        + frame(0, 1, 1, b"\x00" * 5)
    )


async def test_a_path_that_is_no_utf8_does_not_end_the_server(server: RpcServer) -> None:
    host, _, port = server.address.partition(":")
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(call_of(b"/tandem.v1.Probe/\xff\xfe"))
        head = await reader.readexactly(9)  # the server's settings
        await reader.readexactly(int.from_bytes(head[:3]))
        while (head := await reader.readexactly(9))[3] != 1:  # until the call has an answer
            await reader.readexactly(int.from_bytes(head[:3]))
        writer.close()
        await writer.wait_closed()
    error = await refusal(server, "/tandem.v1.Probe/Unknown", b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
