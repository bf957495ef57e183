"""Keeps this worker's card in discovery, with fresh load figures."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from prefill_service.engine.engine import EngineLoad
from shared.discovery.base import Publisher
from shared.discovery.card import WorkerCard

PUBLISH_SECONDS = 1.0
"""How often the figures are renewed."""


class CardPublisher:
    """Publishes a card until it is closed.

    Args:
        discovery: where to.
        card: what does not change.
        load: asked for the rest.
    """

    def __init__(
        self, discovery: Publisher, *, card: WorkerCard, load: Callable[[], EngineLoad]
    ) -> None:
        self._discovery = discovery
        self._card = card
        self._load = load
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Publishes now and from now on."""
        await self.publish()
        self._task = asyncio.create_task(self._keep_published(), name="prefill-card")

    async def publish(self) -> None:
        """Publishes the load of this moment."""
        load = self._load()
        await self._discovery.publish(
            replace(
                self._card,
                draining=load.draining,
                queued_tokens=load.queued_tokens,
                running=load.running_requests,
                pairs=load.pairs,
            )
        )

    async def close(self) -> None:
        """Withdraws the card; twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._discovery.close()

    async def _keep_published(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            await self.publish()
