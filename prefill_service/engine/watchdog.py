"""Tells a stuck engine from a busy one."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

WATCH_SECONDS = 0.5
"""How often the engine is looked at, at most."""

_log = structlog.get_logger(__name__)


class Watchdog:
    """Watches the seconds without progress while there is work.

    Args:
        stalled_seconds: asks the engine.
        stall_s: from here on the worker is not ready.
        exit_s: from here on it is given up; 0 never gives up.
        on_change: told whenever the engine stalls (False) or goes on (True).
        give_up: ends the process; not expected to return.
    """

    def __init__(
        self,
        stalled_seconds: Callable[[], float],
        *,
        stall_s: float,
        exit_s: float,
        on_change: Callable[[bool], Awaitable[None]],
        give_up: Callable[[], None],
    ) -> None:
        self._stalled_seconds = stalled_seconds
        self._stall_s = stall_s
        self._exit_s = exit_s
        self._on_change = on_change
        self._give_up = give_up
        self.healthy = True

    async def run(self) -> None:
        """Watches until it is cancelled."""
        every = min(WATCH_SECONDS, self._stall_s / 2)
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """One look."""
        stalled = self._stalled_seconds()
        healthy = stalled < self._stall_s
        if healthy != self.healthy:
            self.healthy = healthy
            _log.warning("engine goes on" if healthy else "engine stalled", seconds=stalled)
            await self._on_change(healthy)
        if self._exit_s and stalled >= self._exit_s:
            _log.critical("engine stuck: this process gives up", seconds=stalled)
            self._give_up()
