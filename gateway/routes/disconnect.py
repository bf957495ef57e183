"""Work that ends when the client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.background import end_tasks
from shared.errors import CancelledError

T = TypeVar("T")


async def client_gone(receive: Receive) -> None:
    """Returns when the connection is closed; to be called after the body was read."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`, which is cancelled when the client leaves first.

    Raises:
        CancelledError: the client left (the error of ours, not asyncio's).
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(client_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise CancelledError("the client closed the connection before the answer was complete")
    finally:
        await end_tasks(task, watcher)
