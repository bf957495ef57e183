"""Writes of ranges one after the other, of which the last need not be waited for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from prefill_service.engine.prompt_slab import Range


class RangeWrites:
    """Writes ranges one after the other.

    Args:
        write: writes one.
    """

    def __init__(self, write: Callable[[int, int], Awaitable[None]]) -> None:
        self._write = write
        self._last: asyncio.Future[None] | None = None

    async def follow(self, ranges: AsyncIterator[Range], *, most_left: int) -> None:
        """Writes what comes; a last write of at most `most_left` bytes is not awaited."""
        length = 0
        try:
            while (following := await self._next(ranges)) is not None:
                await self.end()
                length = following[1]
                self._last = asyncio.ensure_future(self._write(*following))
            if length > most_left:
                await self.end()
        except BaseException:
            await _cancelled(self._last)
            raise

    async def end(self) -> None:
        """Waits for the write that is under way; cancelled, it ends that."""
        if self._last is not None:
            await self._last

    async def _next(self, ranges: AsyncIterator[Range]) -> Range | None:
        """The next range, None at the end; a write that fails meanwhile is not waited out."""
        following = asyncio.ensure_future(anext(ranges, None))
        try:
            if self._last is not None:
                both: set[asyncio.Future[Any]] = {following, self._last}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if self._last.done():
                    self._last.result()
            return await following
        finally:
            await _cancelled(following)


async def _cancelled(future: asyncio.Future[Any] | None) -> None:
    """Ends what is still under way."""
    if future is not None and not future.done():
        future.cancel()
        await asyncio.gather(future, return_exceptions=True)
