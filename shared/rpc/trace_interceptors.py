"""The trace of a request on its way over gRPC: taken up by servers, handed on by clients."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from shared.rpc.interceptors import (
    AroundCalls,
    Behaviour,
    Context,
    Continuation,
    around_client_calls,
    metadata_text,
    with_metadata,
)
from shared.telemetry.spans import Span, SpanKind, SpanSource, current_span, span_scope
from shared.telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse_context

_UNTRACED = ("/tandem.v1.ControlService/", "/tandem.v1.TransferService/")
"""Polls, and raw bytes whose duration the sender's transfer span has."""


class TraceInterceptor(AroundCalls):
    """Gives each call a span under the caller's, or the first one of a trace.

    Args:
        spans: where they come from.
    """

    def __init__(self, spans: SpanSource) -> None:
        self._spans = spans

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        if details.method.startswith(_UNTRACED):
            return inner
        name = details.method.removeprefix("/")

        async def traced(request: object, context: Context) -> object:
            span = self._spans.root(
                name, parent=_parent_in(details.invocation_metadata), attributes=_call(name)
            )
            with span_scope(span):
                return await inner(request, context)

        return traced


def trace_client_interceptors() -> Sequence[grpc.aio.ClientInterceptor]:
    """Interceptors that give each call a span under the running task's and hand its name on."""
    return around_client_calls(_traced_call)


async def _traced_call(
    continuation: Continuation, details: grpc.aio.ClientCallDetails, request: object
) -> Any:  # noqa: ANN401  grpc has a type for each kind of call
    parent = current_span()
    if parent is None:
        return await continuation(details, request)
    # A client's method is bytes, whatever the type says.
    name = _text(details.method).removeprefix("/")
    span = parent.child(name, kind=SpanKind.CLIENT, attributes=_call(name))
    try:
        call = await continuation(with_metadata(details, _headers(span.context)), request)
    except BaseException:
        span.fail("not_sent")
        span.end()
        raise
    call.add_done_callback(_Ending(span))
    return call


class _Ending:
    """Ends a span with the status of its call, which grpc tells only to those that await it."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._task: asyncio.Task[None] | None = None

    def __call__(self, call: grpc.aio.Call) -> None:
        self._task = asyncio.get_running_loop().create_task(self._end(call))

    async def _end(self, call: grpc.aio.Call) -> None:
        code = await call.code()
        self._span.note({"rpc.grpc.status_code": code.value[0]})
        if code is grpc.StatusCode.CANCELLED:
            self._span.note({"tandem.cancelled": True})
        elif code is not grpc.StatusCode.OK:
            self._span.fail(code.name)
        self._span.end()


def _text(method: str | bytes) -> str:
    return method.decode() if isinstance(method, bytes) else method


def _call(name: str) -> dict[str, str]:
    service, _, method = name.rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def _headers(context: TraceContext) -> dict[str, str]:
    values = {TRACEPARENT: context.header, TRACESTATE: context.state}
    return {key: value for key, value in values.items() if value}


def _parent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> TraceContext | None:
    return parse_context(metadata_text(metadata, TRACEPARENT), metadata_text(metadata, TRACESTATE))
