"""What a broken call means to the gateway."""

import grpc.aio
import structlog

from shared.errors import CancelledError, TandemError, UnavailableError, UnreachableError
from shared.rpc.status import error_from_rpc

_log = structlog.get_logger(__name__)


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
