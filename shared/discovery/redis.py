"""Discovery in Redis: one expiring key a card, and a sorted set of members by expiry.

Expiry and trimming use the server's clock inside one script, so workers' clocks do not matter.
Nothing relies on keyspace events: readers poll. When Redis is lost, readers keep what they last
knew and say `degraded`; after it returns they keep old cards long enough for workers to renew.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from shared.discovery.address_guard import AddressGuard
from shared.discovery.card import WorkerCard
from shared.discovery.redis_client import LOST, open_redis, script_of
from shared.errors import TandemError

_log = structlog.get_logger(__name__)

_NOW_MS = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000); "

# KEYS: card, members. ARGV: worker id, card, ttl in ms.
_PUBLISH = (
    _NOW_MS
    + """
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
"""
)

# KEYS: card, members. ARGV: worker id, incarnation. A newer process's card is left alone.
_WITHDRAW = """
local card = redis.call('GET', KEYS[1])
if card and cjson.decode(card).incarnation ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""

# KEYS: members. Returns the ids that have not expired.
_MEMBERS = (
    _NOW_MS
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Where and how often."""

    url: str
    """For example redis://127.0.0.1:6379/0."""
    namespace: str = "tandem"
    """First part of every key."""
    ttl_s: float = 10.0
    """A card that is not renewed disappears after this long."""
    renew_s: float = 3.0
    """Seconds between renewals."""
    poll_s: float = 1.0
    """Seconds between reads."""
    timeout_s: float = 2.0
    """Seconds a command may take."""


class RedisDiscovery:
    """Reads and publishes cards in Redis; it has a connection of its own.

    Args:
        settings: where and how often.
        roles: roles to read; empty for a worker that only publishes.
        guard: decides whether a card's address may be connected to; None believes every card.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(
        self,
        settings: RedisSettings,
        *,
        roles: Sequence[str] = (),
        guard: AddressGuard | None = None,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._roles = tuple(roles)
        self._redis = open_redis(
            settings.url,
            timeout_s=settings.timeout_s,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=2),
            max_connections=4,
            health_check_s=15,
        )
        self._publish_script = script_of(self._redis, _PUBLISH)
        self._withdraw_script = script_of(self._redis, _WITHDRAW)
        self._members_script = script_of(self._redis, _MEMBERS)
        self._cards: dict[str, dict[str, WorkerCard]] = {role: {} for role in self._roles}
        self._own: WorkerCard | None = None
        self._degraded = False
        self._settled_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def degraded(self) -> bool:
        """True while Redis does not answer."""
        return self._degraded

    async def start(self) -> None:
        """Reads once, then polls; Redis being away makes it degraded, not fail."""
        if self._roles:
            await self._guarded(self._poll)
            self._tasks.append(asyncio.create_task(self._every(self._settings.poll_s, self._poll)))

    def cards(self, role: str) -> list[WorkerCard]:
        """Members of a role, ordered by worker id."""
        found = self._cards.get(role, {})
        return [found[worker_id] for worker_id in sorted(found)]

    async def publish(self, card: WorkerCard) -> None:
        """Writes the card now and renews it; while Redis is away it is retried."""
        first = self._own is None
        self._own = card
        await self._guarded(self._renew)
        if first:
            self._tasks.append(
                asyncio.create_task(self._every(self._settings.renew_s, self._renew))
            )

    async def withdraw(self) -> None:
        """Deletes the own card, unless a newer process has taken the id; nothing own is fine."""
        card, self._own = self._own, None
        if card is not None:
            await self._guarded(lambda: self._remove(card))

    async def close(self) -> None:
        """Withdraws, stops and disconnects; twice is fine."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.withdraw()
        await self._redis.aclose()

    async def _every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._guarded(action)

    async def _guarded(self, action: Callable[[], Awaitable[None]]) -> None:
        """Runs an action; a lost or returned Redis changes `degraded`, and is logged once."""
        try:
            await action()
        except LOST as error:
            if not self._degraded:
                _log.warning("redis is lost; keeping the last known workers", error=str(error))
            self._degraded = True
            self._settled_at = time.monotonic() + self._settings.ttl_s
        else:
            if self._degraded:
                _log.info("redis is back")
            self._degraded = False

    async def _poll(self) -> None:
        found = {role: await self._read(role) for role in self._roles}
        # A Redis that came back empty must not empty the list before workers had time to renew.
        settling = time.monotonic() < self._settled_at
        for role in self._roles:
            self._cards[role] = (self._cards[role] if settling else {}) | found[role]

    async def _read(self, role: str) -> dict[str, WorkerCard]:
        ids: list[str] = await self._members_script(keys=[self._members_key(role)])
        if not ids:
            return {}
        texts = await self._redis.mget([self._card_key(worker_id) for worker_id in ids])
        # Together: names are looked up, and one slow name server must not hold up all workers.
        cards = await asyncio.gather(*map(self._believed, ids, texts))
        return {
            worker_id: card for worker_id, card in zip(ids, cards, strict=True) if card is not None
        }

    async def _believed(self, worker_id: str, text: str | bytes | None) -> WorkerCard | None:
        if text is None:
            return None
        try:
            card = WorkerCard.from_json(text)
            if self._guard is not None:
                await self._guard.check(card.address)
        except TandemError as error:
            _log.warning("worker card ignored", worker=worker_id, why=error.message)
            return None
        return card

    async def _renew(self) -> None:
        card = self._own
        if card is not None:
            await self._publish_script(
                keys=[self._card_key(card.worker_id), self._members_key(card.role)],
                args=[card.worker_id, card.to_json(), round(self._settings.ttl_s * 1000)],
            )

    async def _remove(self, card: WorkerCard) -> None:
        await self._withdraw_script(
            keys=[self._card_key(card.worker_id), self._members_key(card.role)],
            args=[card.worker_id, card.incarnation],
        )

    def _card_key(self, worker_id: str) -> str:
        return f"{self._settings.namespace}:{{workers}}:card:{worker_id}"

    def _members_key(self, role: str) -> str:
        return f"{self._settings.namespace}:{{workers}}:members:{role}"
