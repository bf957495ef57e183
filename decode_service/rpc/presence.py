"""What others see of a worker: its readiness, its gRPC health, its card in discovery."""

import time
from collections.abc import Callable
from dataclasses import replace

from decode_service.engine.caretaker import Caretaker
from decode_service.engine.status import WorkerLoad
from shared.discovery.base import Publisher
from shared.discovery.card import WorkerCard
from shared.rpc.health import Health
from shared.telemetry.admin import Readiness

CARD_EVERY_S = 2.0
"""Seconds between cards with fresh load."""

START_PHASES = ("weights", "cache", "transports", "warm_up", "local_prefill", "register")
"""Start-up phases in order, for the progress shown meanwhile."""


class Presence:
    """Shows a worker to the outside, from its start on.

    Args:
        health: gRPC health.
        load: asks for the present load.
        note: asks for what an operator should look at though the worker serves; may be empty.
        publisher: where the card goes; None when there is no discovery.
    """

    def __init__(
        self,
        health: Health,
        *,
        load: Callable[[], WorkerLoad],
        note: Callable[[], str],
        publisher: Publisher | None,
    ) -> None:
        self._health = health
        self._load = load
        self._note = note
        self._publisher = publisher
        self._card: WorkerCard | None = None
        self._caretaker: Caretaker | None = None
        self._card_due = 0.0
        self.phase = START_PHASES[0]

    @property
    def alive(self) -> bool:
        """Whether the engine makes progress, or is not there yet."""
        return self._caretaker is None or self._caretaker.alive

    async def appear(self, caretaker: Caretaker, card: WorkerCard) -> None:
        """Begins to show the worker; `card` is completed with the load."""
        self._caretaker = caretaker
        self._card = card
        await caretaker.look()

    async def disappear(self) -> None:
        """Takes the card back; twice is fine."""
        if self._publisher is not None:
            await self._publisher.close()

    def readiness(self) -> Readiness:
        """For the admin pages."""
        if self._caretaker is None:
            done = START_PHASES.index(self.phase) / len(START_PHASES)
            return Readiness(ready=False, phase="loading", progress=done, detail=self.phase)
        load = self._load()
        if load.draining:
            left = load.running + load.waiting
            return Readiness(ready=False, phase="draining", detail=f"{left} answers left")
        if not self._caretaker.alive:
            detail = f"steps fail, or no progress for {load.stalled_seconds:.1f} s"
            return Readiness(ready=False, phase="failed", detail=detail)
        return Readiness(ready=True, detail=self._note())

    async def tell_readiness(self, ready: bool) -> None:  # noqa: FBT001  a callback's one value
        """Passes a change on at once."""
        await self._health.set_alive(self.alive)
        await self._health.set_ready(ready)
        self._card_due = 0.0

    async def renew_card(self) -> None:
        """Publishes the card with fresh load, when it is time."""
        if self._publisher is None or self._card is None or time.monotonic() < self._card_due:
            return
        self._card_due = time.monotonic() + CARD_EVERY_S
        load = self._load()
        await self._publisher.publish(
            replace(
                self._card,
                draining=load.draining or not self.alive,
                running=load.running + load.waiting,
                free_pages=load.free_pages,
                total_pages=load.total_pages,
                queued_tokens=load.queued_tokens,
                local_prefill_tokens=load.local_prefill_tokens,
            )
        )
