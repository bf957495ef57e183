"""One running call, read by a thread."""

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

import grpc

from gateway.sdk.call import PreparedCall
from gateway.sdk.reading import CallReader
from gateway.sdk.results import Event, Generation
from protos.tandem.v1 import inference_pb2
from shared.errors import CancelledError
from shared.rpc.status import error_from_rpc


class Rpc(Protocol):
    """A call of grpc's own."""

    def __next__(self) -> inference_pb2.GenerateResponse:
        """The next message."""

    def cancel(self) -> object:
        """Ends the call."""


class GenerationStream(Iterator[Event]):
    """The events of a call, as they come; close it to abort the call, from any thread.

    Args:
        call: what is asked.
        send: makes the call, once for each try.
    """

    def __init__(self, call: PreparedCall, *, send: Callable[[PreparedCall], Rpc]) -> None:
        self.request_id = call.request_id
        self._call = call
        self._send = send
        self._reader = CallReader()
        self._told = False
        self._closed = threading.Event()
        self._rpc = send(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """The next event.

        Raises:
            TandemError: the call failed; its cause is grpc's own error.
            StopIteration: all answers have ended, or the stream was closed.
        """
        while not self._closed.is_set():
            try:
                message = next(self._rpc)
            except grpc.RpcError as error:
                self._try_again(error)
                continue
            event = self._reader.take(message)
            if event is not None:
                self._told = True
                return event
        raise StopIteration

    @property
    def prompt_tokens(self) -> int:
        """Tokens in the prompt; 0 before the first event."""
        return self._reader.prompt_tokens

    def result(self) -> Generation:
        """Reads to the end; all of it, what was read before included.

        Raises:
            TandemError: the call failed.
            CancelledError: the stream was closed before its end.
        """
        for _ in self:
            pass
        if self._closed.is_set():
            raise CancelledError("the stream was closed before its end; there is no whole result")
        return self._reader.generation()

    def close(self) -> None:
        """Ends the call at both ends; twice is fine, and so is a call that is over."""
        self._closed.set()
        self._rpc.cancel()

    def _try_again(self, error: grpc.RpcError) -> None:
        if self._closed.is_set():
            return
        failure = error_from_rpc(error)
        pause = None if self._told else self._call.attempts.pause_s(failure)
        if pause is None:
            raise failure from error
        if not self._closed.wait(pause):
            self._reader = CallReader()
            self._rpc = self._send(self._call)
            if self._closed.is_set():  # by another thread, which cancelled the call before
                self._rpc.cancel()
