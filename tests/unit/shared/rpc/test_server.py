"""Real servers in process: health, reflection, ports, interceptors on every kind of call."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs

from shared.errors import (
    ConfigError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
)
from shared.rpc.channel import open_channel
from shared.rpc.interceptors import (
    REQUEST_ID_KEY,
    ErrorInterceptor,
    current_request_id,
    set_request_id,
)
from shared.rpc.server import RpcServer, build_server
from shared.rpc.status import NEUTRAL_MESSAGE, error_from_rpc
from tests.support.waiting import until

SERVICE = "tandem.v1.Probe"

Act = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def probe(act: Act) -> AsyncIterator[tuple[RpcServer, grpc.aio.Channel]]:
    """A server whose four kinds of method all answer with `act(request)`."""

    async def unary_unary(request: bytes, _context: object) -> bytes:
        return await act(request)

    async def unary_stream(request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"first"
        yield await act(request)

    async def stream_unary(requests: AsyncIterator[bytes], _context: object) -> bytes:
        return await act(b"".join([request async for request in requests]))

    async def stream_stream(_requests: object, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(await act(request))

    handlers: dict[str, Any] = {
        "UU": grpc.unary_unary_rpc_method_handler(unary_unary),
        "US": grpc.unary_stream_rpc_method_handler(unary_stream),
        "SU": grpc.stream_unary_rpc_method_handler(stream_unary),
        "SS": grpc.stream_stream_rpc_method_handler(stream_stream),
    }
    server = build_server(host="127.0.0.1", port=0, service_names=[SERVICE])
    server.server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, handlers),)
    )
    await server.start()
    channel = open_channel(server.address)
    yield server, channel
    await channel.close()
    await server.stop()


async def call(channel: Any, kind: str, request: bytes) -> Any:
    """The last answer of one call of the given kind."""
    path = f"/{SERVICE}/{kind}"
    if kind == "UU":
        return await channel.unary_unary(path)(request)
    if kind == "US":
        return [answer async for answer in channel.unary_stream(path)(request)][-1]
    if kind == "SU":
        return await channel.stream_unary(path)(iter([request]))
    return [answer async for answer in channel.stream_stream(path)(iter([request]))][-1]


KINDS = pytest.mark.parametrize("kind", ["UU", "US", "SU", "SS"])


@KINDS
async def test_answers_pass_through(kind: str) -> None:
    async def act(request: bytes) -> bytes:
        return request.upper()

    async with probe(act) as (server, channel):
        assert await call(channel, kind, b"abc") == b"ABC"
        assert server.in_flight.count == 0


async def test_a_slow_first_handshake_is_waited_for() -> None:
    async def act(request: bytes) -> bytes:
        return request

    async with probe(act) as (server, _):

        async def delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Closed even where the test ends first: a writer left open warns in a later test.
            with contextlib.closing(writer):
                await asyncio.sleep(0.5)
                inner = await asyncio.open_connection(server.host, server.port)
                with contextlib.closing(inner[1]):
                    pipes = [_pipe(reader, inner[1]), _pipe(inner[0], writer)]
                    await asyncio.gather(*pipes, return_exceptions=True)

        async with await asyncio.start_server(delayed, "127.0.0.1", 0) as slow:
            host, port = slow.sockets[0].getsockname()
            channel = open_channel(f"{host}:{port}")
            assert await call(channel, "UU", b"x") == b"x"
            await channel.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@KINDS
async def test_our_errors_keep_their_code(kind: str) -> None:
    async def act(_request: bytes) -> bytes:
        raise InvalidRequestError("top_p is 3: at most 1; lower it", param="top_p")

    async with probe(act) as (_, channel):
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"x")
        error = error_from_rpc(caught.value)
        assert type(error) is InvalidRequestError
        assert error.param == "top_p"
        assert lines == []


@pytest.mark.parametrize("make", ["unary_unary", "unary_stream"])
async def test_a_request_that_cannot_be_read_is_the_callers_mistake(make: str) -> None:
    async def unary_unary(_request: object, _context: object) -> bytes:
        return b"read"

    async def unary_stream(_request: object, _context: object) -> AsyncIterator[bytes]:
        yield b"read"

    behaviour = {"unary_unary": unary_unary, "unary_stream": unary_stream}[make]
    handler = getattr(grpc, f"{make}_rpc_method_handler")(
        behaviour, request_deserializer=health_pb2.HealthCheckRequest.FromString
    )
    server = build_server(host="127.0.0.1", port=0, service_names=[SERVICE])
    handlers = grpc.method_handlers_generic_handler(SERVICE, {make: handler})
    server.server.add_generic_rpc_handlers((handlers,))
    await server.start()
    channel = open_channel(server.address)

    async def ask(request: bytes) -> object:
        call = getattr(channel, make)(f"/{SERVICE}/{make}")(request)
        return await (call if make == "unary_unary" else call.read())

    with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(b"\x0a\xff")
    assert type(error_from_rpc(caught.value)) is InvalidRequestError
    assert lines == []
    assert await ask(b"") == b"read"
    await channel.close()
    await server.stop()


async def test_an_error_for_a_caller_that_has_left_is_no_crash() -> None:
    """grpc cannot send a status on a call that was cut, knows why, and wants its exception back."""

    class Cut:
        async def abort(self, *_status: object) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")

    async def refuse(_request: object, _context: object) -> bytes:
        raise InvalidRequestError("the stream has no end: it was cut; send it whole")

    async def route(_details: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(refuse)

    details: Any = SimpleNamespace(method=f"/{SERVICE}/UU", invocation_metadata=())
    handler: Any = await ErrorInterceptor().intercept_service(route, details)
    outer: Any = await ErrorInterceptor().intercept_service(lambda _: _done(handler), details)
    with capture_logs() as lines, pytest.raises(grpc.aio.InternalError):
        await outer.unary_unary(b"x", Cut())
    assert lines == []


async def _done(value: Any) -> Any:
    return value


@KINDS
async def test_unforeseen_exceptions_are_neutral_and_logged_once(kind: str) -> None:
    async def act(_request: bytes) -> bytes:
        raise ValueError("the user's own words")

    async with probe(act) as (_, channel):
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, b"x")
        error = error_from_rpc(caught.value)
        assert type(error) is InternalError
        assert error.message == NEUTRAL_MESSAGE
        assert [line["event"] for line in lines] == ["unforeseen exception"]
        assert lines[0]["exc_info"]


async def test_internal_errors_are_logged_and_named() -> None:
    async def act(_request: bytes) -> bytes:
        raise InternalError("pages were lost; report this")

    async with probe(act) as (_, channel):
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, "UU", b"x")
        assert "pages were lost" in str(error_from_rpc(caught.value))
        assert len(lines) == 1


async def test_errors_of_a_nested_call_are_handed_on() -> None:
    async def inner(_request: bytes) -> bytes:
        raise DeadlineError("too late")

    async with probe(inner) as (_, inner_channel):

        async def outer(request: bytes) -> bytes:
            return bytes(await call(inner_channel, "UU", request))

        async with probe(outer) as (_, channel):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, "US", b"x")
            assert type(error_from_rpc(caught.value)) is DeadlineError


@KINDS
async def test_a_request_id_reaches_the_handler(kind: str) -> None:
    async def act(_request: bytes) -> bytes:
        return current_request_id().encode()

    async with probe(act) as (_, channel):
        set_request_id("req-7")
        answer = await call(channel, kind, b"x")
        if kind in {"UU", "US"}:
            assert answer == b"req-7"
        else:
            assert len(answer) == 32  # the server made one


async def test_an_explicit_request_id_wins() -> None:
    async def act(_request: bytes) -> bytes:
        return current_request_id().encode()

    async with probe(act) as (_, channel):
        set_request_id("from-the-task")
        method: Any = channel.unary_unary(f"/{SERVICE}/UU")
        assert await method(b"x", metadata=((REQUEST_ID_KEY, "explicit"),)) == b"explicit"


async def test_a_cancel_runs_finally_blocks_of_a_response_stream() -> None:
    closed = asyncio.Event()

    async def act(_request: bytes) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            closed.set()
        return b""

    async with probe(act) as (server, channel):
        method: Any = channel.unary_stream(f"/{SERVICE}/US")
        stream = method(b"x")
        assert await stream.read() == b"first"
        assert server.in_flight.count == 1
        stream.cancel()
        async with asyncio.timeout(2):
            await closed.wait()
        await until(lambda: server.in_flight.count == 0)


async def test_a_drain_waits_for_running_calls_and_says_not_ready() -> None:
    go_on = asyncio.Event()

    async def act(_request: bytes) -> bytes:
        await go_on.wait()
        return b"done"

    async with probe(act) as (server, channel):
        await server.health.set_ready(True)
        running = asyncio.create_task(call(channel, "UU", b"x"))
        await until(lambda: server.in_flight.count == 1)
        assert not await server.drain(timeout_s=0.01)
        assert await _health(channel, "readiness") == "NOT_SERVING"
        go_on.set()
        assert await server.drain(timeout_s=2)
        assert await running == b"done"


async def _health(channel: grpc.aio.Channel, name: str) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def _echo(request: bytes) -> bytes:
    return request


async def test_health_names() -> None:
    async with probe(_echo) as (server, channel):
        names = ("", "readiness", SERVICE)
        assert [await _health(channel, n) for n in names] == ["NOT_SERVING"] * 3
        assert await _health(channel, "liveness") == "SERVING"
        await server.health.set_ready(True)
        assert [await _health(channel, n) for n in names] == ["SERVING"] * 3
        await server.health.set_alive(False)
        assert await _health(channel, "liveness") == "NOT_SERVING"
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await _health(channel, "unknown")


async def test_reflection_lists_the_services() -> None:
    async with probe(_echo) as (_, channel):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [a async for a in stub.ServerReflectionInfo(iter([request]))]
        names = {service.name for service in answers[0].list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_reflection_can_be_left_out() -> None:
    server = build_server(host="127.0.0.1", port=0, service_names=[], with_reflection=False)
    await server.start()
    channel = open_channel(server.address)
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
        _ = [a async for a in stub.ServerReflectionInfo(iter([request]))]
    await channel.close()
    await server.stop()
    await server.stop()


async def test_a_busy_port_names_itself_and_its_owner() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            build_server(host="127.0.0.1", port=port, service_names=[])
    assert caught.value.error_code == "port_in_use"
    assert str(port) in str(caught.value)
    assert "process" in str(caught.value)


async def test_an_ipv6_host_gets_its_brackets() -> None:
    server = build_server(host="::1", port=0, service_names=[])
    assert server.address == f"[::1]:{server.port}"
    await server.stop()


async def test_a_foreign_host_is_a_setting_error() -> None:
    with pytest.raises(ConfigError, match="not an address"):
        build_server(host="192.0.2.1", port=0, service_names=[])


async def test_beyond_loopback_is_warned_about() -> None:
    with capture_logs() as lines:
        server = build_server(host="0.0.0.0", port=0, service_names=[])  # noqa: S104
    await server.stop()
    assert [line["log_level"] for line in lines] == ["warning"]
