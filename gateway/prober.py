"""A second look at workers that a call could not reach: a dead one is known at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from gateway.clients.events import Target
from gateway.workers import Workers
from shared.errors import TandemError

_LONGEST_S = 1.0

_log = structlog.get_logger(__name__)


class Prober:
    """Asks workers who they are and tells `Workers` what came of it.

    Args:
        ask: a cheap call to host:port; raises a TandemError.
        workers: load accounts and breakers.
    """

    def __init__(self, ask: Callable[[str], Awaitable[object]], workers: Workers) -> None:
        self._ask = ask
        self._workers = workers

    async def look(self, targets: Iterable[Target]) -> None:
        """Looks at all of them; returns within a second, whatever they do."""
        await asyncio.gather(*(self._look_at(target) for target in targets))

    async def _look_at(self, target: Target) -> None:
        try:
            async with asyncio.timeout(_LONGEST_S):
                await self._ask(target.address)
        except TandemError as error:
            self._workers.failed(target.worker_id, error)
            _log.warning("worker cannot be reached", worker=target.worker_id, why=error.message)
        except TimeoutError:
            _log.warning("worker is slow to answer", worker=target.worker_id)
