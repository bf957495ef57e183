"""A channel whose calls carry the request id and the trace of the task that makes them.

grpc has interceptors for this, but each of them is a task and several turns of the loop for every
call, and a further generator for every message of a stream.
"""

from __future__ import annotations  # grpc's generic types exist for the type checker only

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from shared.rpc.interceptors import REQUEST_ID_KEY, current_request_id
from shared.telemetry.spans import Span, SpanKind, current_span
from shared.telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext

MakeCall = Callable[..., Any]
"""One of grpc's multi-callables: request and keyword arguments in, a call out."""


class CarryingChannel(grpc.aio.Channel):
    """Carries for calls with one request, which all calls to other roles but the bulk data are.

    Args:
        inner: does everything else.
    """

    def __init__(self, inner: grpc.aio.Channel) -> None:
        self._inner = inner

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  grpc's
        """A method with one response."""
        return _carrying(method, self._inner.unary_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  grpc's
        """A method with a stream of responses."""
        return _carrying(method, self._inner.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  grpc's
        """A method with a stream of requests; it carries nothing."""
        return self._inner.stream_unary(method, *args, **kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  grpc's
        """A method with two streams; it carries nothing."""
        return self._inner.stream_stream(method, *args, **kwargs)

    async def close(self, grace: float | None = None) -> None:
        """Closes it; calls that run may take `grace` seconds."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: FBT001, FBT002  grpc's
        """Whether it is connected."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns when its state is another one."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Returns when it is connected."""
        await self._inner.channel_ready()

    async def __aenter__(self) -> CarryingChannel:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


def _carrying(method: str, make: MakeCall) -> MakeCall:
    name = method.removeprefix("/")

    def call(request: object, **options: Any) -> Any:  # noqa: ANN401  grpc has a type for each kind
        request_id = current_request_id()
        carried = {REQUEST_ID_KEY: request_id} if request_id else {}
        parent = current_span()
        if parent is None:
            return make(request, **_with_metadata(options, carried))
        span = parent.child(name, kind=SpanKind.CLIENT, attributes=_attributes(name))
        options = _with_metadata(options, {**carried, **_headers(span.context)})
        if span is parent:  # nothing is recorded
            return make(request, **options)
        return _recorded(make, request, options, span=span)

    return call


def _recorded(make: MakeCall, request: object, options: Mapping[str, Any], *, span: Span) -> Any:  # noqa: ANN401  as above
    try:
        call = make(request, **options)
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


def _with_metadata(options: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """A call's options with more metadata; what it carries already stays."""
    given = tuple(options.get("metadata") or ())
    known = {key for key, _ in given}
    added = tuple((key, value) for key, value in values.items() if key not in known)
    return {**options, "metadata": (*given, *added)}


def _attributes(name: str) -> dict[str, str]:
    service, _, method = name.rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def _headers(context: TraceContext) -> dict[str, str]:
    values = {TRACEPARENT: context.header, TRACESTATE: context.state}
    return {key: value for key, value in values.items() if value}
