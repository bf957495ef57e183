"""Several streams of events as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from gateway.background import end_tasks

E = TypeVar("E")


def merged(streams: Sequence[AsyncGenerator[E, None]]) -> AsyncGenerator[E, None]:
    """Events as they come; those that are ready together come in the order of `streams`.

    No stream runs more than one event ahead of the reader. The first error ends all streams, and
    so does closing the iterator. One stream stays what it is.

    Raises:
        Exception: whatever one of them raised.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[E, None]]) -> AsyncGenerator[E, None]:
    upcoming: dict[int, asyncio.Future[E]] = {}
    try:
        for index, stream in enumerate(streams):
            upcoming[index] = asyncio.ensure_future(anext(stream))
        while upcoming:
            await asyncio.wait(upcoming.values(), return_when=asyncio.FIRST_COMPLETED)
            for index in [i for i, future in sorted(upcoming.items()) if future.done()]:
                try:
                    event = upcoming[index].result()
                except StopAsyncIteration:
                    del upcoming[index]
                    continue
                upcoming[index] = asyncio.ensure_future(anext(streams[index]))
                yield event
    finally:
        await end_tasks(*upcoming.values())
        for stream in streams:
            await stream.aclose()
