"""What a broken call means to the gateway."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import grpc.aio
import structlog

from shared.errors import CancelledError, TandemError, UnavailableError, UnreachableError
from shared.rpc.status import error_from_rpc

R = TypeVar("R")
M = TypeVar("M")
E = TypeVar("E")

_log = structlog.get_logger(__name__)


@contextmanager
def worker_errors() -> Generator[None]:
    """Raises what a broken call inside the block means, as a TandemError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise worker_error(error) from error


async def events_of(
    call: "Callable[[], grpc.aio.UnaryStreamCall[R, M]]", convert: Callable[[M], E | None]
) -> AsyncGenerator[E, None]:
    """The events of a streaming call, without those that `convert` has no use for.

    The call is made when the first event is asked for; closing the iterator cancels it.

    Raises:
        TandemError: the worker refused or failed, or the connection broke.
    """
    stream = call()
    try:
        with worker_errors():
            async for message in stream:
                event = convert(message)
                if event is not None:
                    yield event
    finally:
        stream.cancel()


def worker_error(error: grpc.aio.AioRpcError) -> TandemError:
    """The error behind a failed call.

    A call that the worker cancelled is a worker that went away.
    """
    found = error_from_rpc(error)
    lost = isinstance(found, UnavailableError) and found.error_code == UnavailableError.code
    if lost or isinstance(found, CancelledError):
        _log.info("connection to a worker lost", reason=found.message)
        cls = UnreachableError if isinstance(found, UnreachableError) else UnavailableError
        return cls(
            "the connection to a worker was lost: it stopped, or it cannot be reached; "
            "send the request again"
        )
    return found
