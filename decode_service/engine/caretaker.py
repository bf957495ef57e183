"""Looks after a worker on clocks of its own: leases, progress, readiness.

Leases are reaped whether or not requests arrive: a leak must not prevent its own repair.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from decode_service.engine.worker import DecodeWorker
from shared.errors import TandemError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CareSettings:
    """How often, and how patient."""

    every_s: float = 0.5
    """Seconds between looks."""
    stall_s: float = 10.0
    """Seconds without progress after which the worker is not ready."""
    stall_exit_s: float = 120.0
    """Seconds without progress after which the process gives up; 0 never does."""


class Caretaker:
    """Reaps leases, watches progress, tells of changes.

    Args:
        worker: what is looked after.
        settings: how often.
        on_ready: told whenever readiness changes.
        on_look: called at each look, for cards and gauges.
        give_up: called once when the engine is beyond hope.
    """

    def __init__(
        self,
        worker: DecodeWorker,
        *,
        settings: CareSettings,
        on_ready: Callable[[bool], Awaitable[None]],
        on_look: Callable[[], Awaitable[None]],
        give_up: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._on_ready = on_ready
        self._on_look = on_look
        self._give_up = give_up
        self._was_ready: bool | None = None
        self._gave_up = False

    @property
    def alive(self) -> bool:
        """Whether the engine makes progress."""
        engine = self._worker.engine
        return engine.healthy and engine.stalled_seconds < self._settings.stall_s

    @property
    def ready(self) -> bool:
        """Whether new work is welcome."""
        return self.alive and not self._worker.table.draining

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.every_s)

    async def look(self) -> None:
        """One look; a defect in one part does not stop the others."""
        try:
            self._worker.table.reap()
        except TandemError:
            _log.exception("leases could not be reaped")
        if self.ready != self._was_ready:
            self._was_ready = self.ready
            _log.info("readiness changed", ready=self.ready, alive=self.alive)
            await self._on_ready(self.ready)
        await self._on_look()
        self._judge()

    def _judge(self) -> None:
        engine = self._worker.engine
        patience = self._settings.stall_exit_s
        stuck = bool(patience) and engine.stalled_seconds >= patience
        if self._gave_up or not (stuck or engine.crashed):
            return
        self._gave_up = True
        why = "its thread failed" if engine.crashed else f"no progress for {patience:g} s"
        _log.critical("the decode engine is beyond repair; the process ends", why=why)
        self._give_up(why)
