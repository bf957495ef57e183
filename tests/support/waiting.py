"""Waiting for what no event tells of."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Waits until a condition holds.

    Raises:
        TimeoutError: it did not in so many seconds, which only a test that fails needs.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  the condition is anybody's
            await asyncio.sleep(0.002)
