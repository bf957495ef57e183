"""A commit that is said while the cache is still computed, so that nobody waits for it afterwards.

What a manifest says is known once the layout is final; the sums of its segments follow with the end
of the push, on a stream that is open already. The worker adopts when both are there and agree.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shared.errors import UnavailableError, UnreachableError
from shared.types.kv_manifest import KvManifest

T = TypeVar("T")

_GONE = (UnavailableError, UnreachableError)
"""Errors of a worker that is away, as against one that refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What can be said of a cache before its last byte is there."""

    manifest: Callable[[], Awaitable[KvManifest]]
    """Without sums; waits until its layout is final."""
    sums: Callable[[], Awaitable[tuple[int, ...]]]
    """Of its segments; waits until they are computed."""
    prompt_token_ids: Sequence[int]
    """The prompt, when a later draw looks at it."""


class CommitAhead:
    """One such commit; it runs from the start.

    Args:
        commit: says it and waits for the answer.
    """

    def __init__(self, commit: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(commit)

    async def unless_refused(self, work: Coroutine[Any, Any, T]) -> T:
        """Does `work`; a worker that refuses the commit meanwhile ends it.

        One that cannot be reached does not: the work knows better what became of the bytes.

        Raises:
            TandemError: the refusal, or what the work failed with.
        """
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({working, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                error = self._task.exception()
                if error is not None and not isinstance(error, _GONE):
                    raise error
            return await working
        finally:
            if not working.done():
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    async def answer(self) -> None:
        """Waits until the cache is adopted.

        Raises:
            TandemError: it was refused, or the worker cannot be reached.
        """
        await self._task

    async def cancel(self) -> None:
        """Ends it; what the worker makes of it is for an abort to find out."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
