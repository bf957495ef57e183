"""Calls carry the id and the trace of their task; recorded spans end with the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from shared.rpc.carrying_channel import CarryingChannel
from shared.rpc.interceptors import REQUEST_ID_KEY, metadata_text, set_request_id
from shared.telemetry.spans import Attributes, QuietSpan, Span, SpanKind, span_scope
from shared.telemetry.trace_context import TRACEPARENT, TraceContext, fresh_context

METHOD = "/tandem.v1.Probe/"
KEYS = (REQUEST_ID_KEY, TRACEPARENT, "own")


class RecordedSpan:
    """A span that remembers what it is told."""

    def __init__(self) -> None:
        self.context: TraceContext = fresh_context()
        self.children: list[tuple[str, SpanKind, RecordedSpan]] = []
        self.notes: dict[str, object] = {}
        self.failed = ""
        self.ended = asyncio.Event()

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        started_s_ago: float = 0.0,
    ) -> Span:
        span = RecordedSpan()
        span.note(attributes or {})
        self.children.append((name, kind, span))
        return span

    def note(self, attributes: Attributes) -> None:
        self.notes.update(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        raise AssertionError("calls have no moments of their own")

    def fail(self, code: str) -> None:
        self.failed = code

    def end(self, *, s_ago: float = 0.0) -> None:
        self.ended.set()


def told(context: Any) -> bytes:
    metadata = context.invocation_metadata()
    return "|".join(metadata_text(metadata, key) for key in KEYS).encode()


@asynccontextmanager
async def probe() -> AsyncIterator[CarryingChannel]:
    """A server that answers with the metadata of the call; DENY refuses, WAIT never answers."""

    async def one(request: bytes, context: Any) -> bytes:
        if request == b"DENY":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        if request == b"WAIT":
            await asyncio.Event().wait()
        return told(context)

    async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await one(request, context)

    async def from_many(requests: AsyncIterator[bytes], context: Any) -> bytes:
        assert [request async for request in requests] == [b"a"]
        return told(context)

    async def both(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield told(context)

    handlers: dict[str, Any] = {
        "UU": grpc.unary_unary_rpc_method_handler(one),
        "US": grpc.unary_stream_rpc_method_handler(many),
        "SU": grpc.stream_unary_rpc_method_handler(from_many),
        "SS": grpc.stream_stream_rpc_method_handler(both),
    }
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler(METHOD.strip("/"), handlers)
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with CarryingChannel(grpc.aio.insecure_channel(f"127.0.0.1:{port}")) as channel:
            yield channel
    finally:
        await server.stop(None)


async def ask(channel: CarryingChannel, kind: str, request: bytes = b"", **options: Any) -> str:
    if kind == "UU":
        return bytes(await channel.unary_unary(f"{METHOD}UU")(request, **options)).decode()
    stream = channel.unary_stream(f"{METHOD}US")(request, **options)
    try:
        (answer,) = [message async for message in stream]
    finally:
        stream.cancel()
    return bytes(answer).decode()


@pytest.mark.parametrize("kind", ["UU", "US"])
async def test_a_call_without_a_request_carries_nothing(kind: str) -> None:
    async with probe() as channel:
        assert await ask(channel, kind) == "||"


@pytest.mark.parametrize("kind", ["UU", "US"])
async def test_id_and_trace_go_along_and_own_metadata_stays(kind: str) -> None:
    set_request_id("req_1")
    span = QuietSpan(fresh_context())
    async with probe() as channel:
        with span_scope(span):
            answer = await ask(channel, kind, metadata=(("own", "mine"),))
            assert answer == f"req_1|{span.context.header}|mine"
            given = await ask(channel, kind, metadata=((REQUEST_ID_KEY, "given"),))
            assert given == f"given|{span.context.header}|"


async def test_calls_with_streams_of_requests_carry_nothing() -> None:
    set_request_id("req_1")

    async def requests() -> AsyncIterator[bytes]:
        yield b"a"

    async with probe() as channel:
        assert bytes(await channel.stream_unary(f"{METHOD}SU")(requests())) == b"||"
        stream = channel.stream_stream(f"{METHOD}SS")(requests())
        assert [bytes(message) async for message in stream] == [b"||"]


@pytest.mark.parametrize("kind", ["UU", "US"])
async def test_a_recorded_span_ends_with_its_call(kind: str) -> None:
    parent = RecordedSpan()
    async with probe() as channel:
        with span_scope(parent):
            answer = await ask(channel, kind)
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(channel, kind, b"DENY")
            waiting = asyncio.create_task(ask(channel, kind, b"WAIT"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        (good, denied, left) = [span for _, _, span in parent.children]
        for span in (good, denied, left):
            await asyncio.wait_for(span.ended.wait(), 10)
    assert {(name, found) for name, found, _ in parent.children} == {
        (f"tandem.v1.Probe/{kind}", SpanKind.CLIENT)
    }
    assert answer == f"|{good.context.header}|"
    assert good.notes["rpc.method"] == kind
    assert (good.notes["rpc.grpc.status_code"], good.failed) == (0, "")
    assert denied.failed == "PERMISSION_DENIED"
    assert (left.notes.get("tandem.cancelled"), left.failed) == (True, "")


async def test_a_call_that_cannot_be_made_fails_its_span() -> None:
    parent = RecordedSpan()
    async with probe() as channel:
        pass
    with span_scope(parent), pytest.raises(grpc.aio.UsageError):
        await ask(channel, "UU")
    ((_, _, span),) = parent.children
    assert span.failed == "not_sent"
    assert span.ended.is_set()


async def test_the_rest_is_the_inner_channels() -> None:
    async with probe() as channel:
        state = channel.get_state(try_to_connect=True)
        assert state is grpc.ChannelConnectivity.IDLE
        await asyncio.wait_for(channel.wait_for_state_change(state), 10)
        await asyncio.wait_for(channel.channel_ready(), 10)
        await channel.close()
