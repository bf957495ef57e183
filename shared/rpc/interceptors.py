"""What happens around every call that comes in: request ids, error mapping, counting for a drain.

Server interceptors turn a handler into a coroutine once, and wrap that; a response generator is
closed inside the call's own task, so that its `finally` blocks run at the moment of a cancel.
"""

from __future__ import annotations  # grpc's generic types exist for the type checker only

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from shared.errors import InternalError, InvalidRequestError, TandemError
from shared.rpc.status import NEUTRAL_MESSAGE, abort_with, error_from_rpc
from shared.telemetry.logs import log_context
from shared.telemetry.spans import current_span

REQUEST_ID_KEY = "x-request-id"
"""Metadata key, the same as the HTTP header."""

_OWN_METHODS = "/tandem."

_request_id: ContextVar[str] = ContextVar("tandem_request_id", default="")

_log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
"""A call as its handler sees it."""

Behaviour = Callable[[object, Context], Awaitable[object]]
"""A handler as a coroutine: returns the response, or writes a stream of them."""


def current_request_id() -> str:
    """The request id of the running task, or an empty string."""
    return _request_id.get()


def set_request_id(request_id: str) -> None:
    """Names the running task's request; calls it makes carry the id."""
    _request_id.set(request_id)


class InFlight:
    """Counts running calls, so that a drain can wait for them."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        """Calls running now."""
        return self._count

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no call runs; False when `timeout_s` was not enough."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def enter(self) -> None:
        """A call begins."""
        self._count += 1
        self._idle.clear()

    def leave(self) -> None:
        """A call is over."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()


class AroundCalls(grpc.aio.ServerInterceptor):
    """Base: wraps the behaviour of our own methods, leaves health and reflection alone."""

    methods = _OWN_METHODS
    """How the paths of the methods begin."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler that the next interceptor returns."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self.methods):
            return handler
        return _rewrap(handler, lambda inner: self._around(inner, handler_call_details))

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        raise NotImplementedError


class InFlightInterceptor(AroundCalls):
    """Counts calls."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    def _around(self, inner: Behaviour, _details: grpc.HandlerCallDetails, /) -> Behaviour:
        async def counted(request: object, context: Context) -> object:
            self._in_flight.enter()
            try:
                return await inner(request, context)
            finally:
                self._in_flight.leave()

        return counted


class RequestIdInterceptor(AroundCalls):
    """Takes the caller's request id, or makes one, and puts it on every log line of the call."""

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        async def named(request: object, context: Context) -> object:
            request_id = (
                metadata_text(details.invocation_metadata, REQUEST_ID_KEY) or uuid.uuid4().hex
            )
            token = _request_id.set(request_id)
            try:
                with log_context(request_id=request_id):
                    return await inner(request, context)
            finally:
                _request_id.reset(token)

        return named


class ErrorInterceptor(AroundCalls):
    """Ends calls that raise with the right status; unforeseen exceptions are logged with stack.

    Health and reflection as well: what they are sent is as damaged as what our own methods are.
    """

    methods = "/"

    def _around(self, inner: Behaviour, details: grpc.HandlerCallDetails, /) -> Behaviour:
        async def mapped(request: object, context: Context) -> object:
            try:
                return await inner(request, context)
            except (grpc.aio.AbortError, grpc.aio.InternalError):
                raise  # ended already, or by a caller that has left: grpc tells them apart
            except InternalError as error:
                _log.exception("internal error", method=details.method)
                await _end_with(context, error)
            except TandemError as error:
                await _end_with(context, error)
            except grpc.aio.AioRpcError as error:
                await _end_with(context, error_from_rpc(error))
            except Exception as error:  # noqa: BLE001  the border of the process
                await _end_unforeseen(context, error, method=details.method)

        return mapped


async def _end_unforeseen(context: Context, error: Exception, *, method: str) -> NoReturn:
    """Tells the caller nothing but a neutral text."""
    left_out = context.code() is grpc.StatusCode.UNIMPLEMENTED
    if left_out and isinstance(error, NotImplementedError):
        # The stub of a method that a servicer leaves out, as the generated code has it.
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not offered here")
    _log.error("unforeseen exception", method=method, exc_info=error)
    await _end_with(context, InternalError(NEUTRAL_MESSAGE))


async def _end_with(context: Context, error: TandemError) -> NoReturn:
    span = current_span()
    if span is not None:
        span.fail(error.error_code)
    await abort_with(context, error)


def metadata_text(metadata: Iterable[tuple[str, str | bytes]] | None, key: str) -> str:
    """The first text under a key; empty without one."""
    for found, value in metadata or ():
        if found == key and isinstance(value, str):
            return value
    return ""


def _as_coroutine(handler: Callable[..., Any]) -> Behaviour:
    if not inspect.isasyncgenfunction(handler):
        return handler

    async def write_all(request: object, context: Context) -> None:
        async with aclosing(handler(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write_all


Deserialize = Callable[[bytes], object]
"""Reads a message."""


def _reading(deserialize: Deserialize) -> Deserialize:
    """What cannot be read is the caller's mistake, not ours."""

    def read(raw: bytes) -> object:
        try:
            return deserialize(raw)
        except DecodeError as error:
            raise InvalidRequestError(
                f"the request of {len(raw)} bytes is no message of this method: it was damaged, or "
                "made from other protos; generate the stubs from the protos of this version"
            ) from error

    return read


def _parsing(inner: Behaviour, deserialize: Deserialize | None) -> Behaviour:
    """Reads the request inside the call, where errors have their place."""
    if deserialize is None:
        return inner
    read = _reading(deserialize)

    async def parsed(raw: object, context: Context) -> object:
        assert isinstance(raw, bytes), "grpc hands over what it received"
        return await inner(read(raw), context)

    return parsed


def _rewrap(
    handler: grpc.RpcMethodHandler[Any, Any], around: Callable[[Behaviour], Behaviour]
) -> grpc.RpcMethodHandler[Any, Any]:
    kinds: tuple[tuple[Any, Callable[..., Any]], ...] = (
        (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    )
    given = handler.request_deserializer
    of_stream = _reading(given) if handler.request_streaming and given is not None else None
    of_one = None if handler.request_streaming else given
    for inner, make in kinds:
        if inner is not None:
            wrapped: grpc.RpcMethodHandler[Any, Any] = make(
                around(_parsing(_as_coroutine(inner), of_one)),
                request_deserializer=of_stream,
                response_serializer=handler.response_serializer,
            )
            return wrapped
    raise AssertionError("a handler without behaviour")
