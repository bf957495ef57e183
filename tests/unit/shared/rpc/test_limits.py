"""What a gRPC server takes at most."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.rpc.channel import open_channel
from shared.rpc.options import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from shared.rpc.server import RpcServer, build_server


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    server = build_server(host="127.0.0.1", port=0, service_names=())
    await server.start()
    yield server
    await server.stop()


async def refusal(
    server: RpcServer, *, service: str = "liveness", note: str = ""
) -> grpc.StatusCode | None:
    """The status of a health check with metadata of that length; None when it passes."""
    async with open_channel(server.address, own_connection=True) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            await stub.Check(request, timeout=10.0, metadata=(("x-note", note),))
        except grpc.aio.AioRpcError as error:
            return error.code()
    return None


async def test_metadata_is_bounded(server: RpcServer) -> None:
    assert await refusal(server, note="a" * (MAX_METADATA_BYTES - 1024)) is None
    too_much = await refusal(server, note="a" * (MAX_METADATA_BYTES + 1))
    assert too_much is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await refusal(server) is None, "the server goes on"


async def test_messages_are_bounded(server: RpcServer) -> None:
    async with grpc.aio.insecure_channel(
        server.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="a" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request, timeout=30.0)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await refusal(server) is None
