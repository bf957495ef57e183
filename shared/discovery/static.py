"""Discovery over fixed addresses: each is asked who it is, again and again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from shared.discovery.card import WorkerCard
from shared.errors import TandemError, UnreachableError

FetchCard = Callable[[str], Awaitable[WorkerCard]]
"""Asks the worker at host:port for its card; raises a TandemError when it does not answer."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """How often addresses are asked."""

    refresh_s: float = 1.0
    """Seconds between rounds."""
    timeout_s: float = 2.0
    """Seconds an address may take to answer."""
    forget_after: int = 3
    """A worker leaves the list after this many silent rounds; at once when nobody listens there."""


class StaticDiscovery:
    """Asks fixed addresses for their cards.

    Args:
        addresses: host:port lists by role.
        fetch: asks one address.
        settings: how often.
    """

    degraded = False

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        *,
        fetch: FetchCard,
        settings: StaticSettings | None = None,
    ) -> None:
        self._targets = [(role, a) for role, listed in addresses.items() for a in listed]
        self._fetch = fetch
        self._settings = settings if settings is not None else StaticSettings()
        self._known: dict[tuple[str, str], WorkerCard] = {}
        self._silent_rounds: dict[tuple[str, str], int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Asks every address once, then keeps asking."""
        await self._refresh()
        self._task = asyncio.create_task(self._keep_fresh())

    def cards(self, role: str) -> list[WorkerCard]:
        """Workers that answer, ordered by worker id."""
        found = (card for (listed, _), card in self._known.items() if listed == role)
        return sorted(found, key=lambda card: card.worker_id)

    async def close(self) -> None:
        """Stops asking; twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            await self._refresh()

    async def _refresh(self) -> None:
        await asyncio.gather(*(self._ask(role, address) for role, address in self._targets))

    async def _ask(self, role: str, address: str) -> None:
        key = (role, address)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                card = await self._fetch(address)
        except UnreachableError as error:
            self._missed(key, str(error), rounds=self._settings.forget_after)
            return
        except (TandemError, TimeoutError) as error:
            self._missed(key, str(error) or "no answer in time")
            return
        if card.role != role:
            self._missed(key, f"it is a {card.role} worker, listed as {role}")
            return
        if key not in self._known:
            _log.info("worker found", worker_role=role, address=address, worker=card.worker_id)
        self._known[key] = card
        self._silent_rounds[key] = 0

    def _missed(self, key: tuple[str, str], why: str, *, rounds: int = 1) -> None:
        before = self._silent_rounds.get(key, 0)
        self._silent_rounds[key] = before + rounds
        if before < self._settings.forget_after <= before + rounds:
            self._known.pop(key, None)
            _log.warning("worker does not answer", worker_role=key[0], address=key[1], why=why)
