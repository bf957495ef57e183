"""Tasks that outlive the request that started them: cancels, releases, renewals."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from shared.errors import TandemError, UnreachableError

_log = structlog.get_logger(__name__)


class Background:
    """Keeps tasks referenced, logs their failures, waits for them at shutdown."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Starts `work`; its errors are logged, never raised."""
        task = asyncio.create_task(self._guard(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, *, timeout_s: float) -> None:
        """Waits for what runs, then cancels the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        defect = None if task.cancelled() else task.exception()
        if defect is not None:
            _log.error("background task broke", task=task.get_name(), exc_info=defect)

    @staticmethod
    async def _guard(work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except UnreachableError as error:  # its worker is gone, and what it held with it
            _log.info("background task has nobody to tell", task=name, reason=error.message)
        except TandemError as error:
            _log.warning("background task failed", task=name, reason=error.message)


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits for their cleanup; their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
