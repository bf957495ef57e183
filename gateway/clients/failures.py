"""What a broken call means to the gateway."""

import grpc.aio

from shared.errors import CancelledError, TandemError, UnavailableError
from shared.rpc.status import error_from_rpc


def worker_error(error: grpc.aio.AioRpcError) -> TandemError:
    """The error behind a failed call.

    A call that the worker cancelled is a worker that went away.
    """
    found = error_from_rpc(error)
    if isinstance(found, CancelledError):
        return UnavailableError(
            f"the worker ended the call by itself ({found.message}): it is stopping; try another"
        )
    return found
