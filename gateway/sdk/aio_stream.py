"""One running call, read by a task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc.aio

from gateway.sdk.call import PreparedCall
from gateway.sdk.reading import CallReader
from gateway.sdk.results import Event, Generation
from shared.errors import CancelledError
from shared.rpc.status import error_from_rpc

AioRpc = grpc.aio.UnaryStreamCall[Any, Any]
"""A call of grpc's own."""


class AsyncGenerationStream(AsyncIterator[Event]):
    """The events of a call, as they come; close it to abort the call.

    Args:
        call: what is asked.
        send: makes the call, once for each try.
    """

    def __init__(self, call: PreparedCall, *, send: Callable[[PreparedCall], AioRpc]) -> None:
        self.request_id = call.request_id
        self._call = call
        self._send = send
        self._reader = CallReader()
        self._told = False
        self._closed = asyncio.Event()
        self._open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event.

        Raises:
            TandemError: the call failed; its cause is grpc's own error.
            StopAsyncIteration: all answers have ended, or the stream was closed.
        """
        while not self._closed.is_set():
            try:
                message = await anext(self._messages)
            except grpc.aio.AioRpcError as error:
                await self._try_again(error)
                continue
            except asyncio.CancelledError:
                # Closed by another task: grpc says it in the same words as a cancel of this one.
                task = asyncio.current_task()
                if not self._closed.is_set() or (task is not None and task.cancelling()):
                    raise
                continue
            event = self._reader.take(message)
            if event is not None:
                self._told = True
                return event
        raise StopAsyncIteration

    @property
    def prompt_tokens(self) -> int:
        """Tokens in the prompt; 0 before the first event."""
        return self._reader.prompt_tokens

    async def result(self) -> Generation:
        """Reads to the end; all of it, what was read before included.

        Raises:
            TandemError: the call failed.
            CancelledError: the stream was closed before its end.
        """
        async for _ in self:
            pass
        if self._closed.is_set():
            raise CancelledError("the stream was closed before its end; there is no whole result")
        return self._reader.generation()

    async def aclose(self) -> None:
        """Ends the call at both ends; twice is fine, and so is a call that is over."""
        self._closed.set()
        self._rpc.cancel()

    def _open(self) -> None:
        self._rpc = self._send(self._call)
        self._messages = aiter(self._rpc)

    async def _try_again(self, error: grpc.aio.AioRpcError) -> None:
        if self._closed.is_set():
            return
        failure = error_from_rpc(error)
        pause = None if self._told else self._call.attempts.pause_s(failure)
        if pause is None:
            raise failure from error
        try:
            async with asyncio.timeout(pause):
                await self._closed.wait()
        except TimeoutError:
            self._reader = CallReader()
            self._open()
