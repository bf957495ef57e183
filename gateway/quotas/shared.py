"""Quotas of all gateways together, in Redis; while it is lost each gateway counts for itself.

One hash a key holds the buckets, and one script looks and counts in one step by the server's
clock. What Redis counted for this gateway is mirrored in memory, so that a loss does not hand
every key a fresh minute.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.quotas.base import NOTHING, Cost, Limits, Use, Verdict, judge
from gateway.quotas.local import LocalQuotas
from gateway.quotas.window import WINDOW_S
from shared.discovery.redis_client import LOST, open_redis, script_of

_UNLIMITED = -1
_MAX_CONNECTIONS = 32

# KEYS: the key's hash. ARGV: limits of requests and tokens (-1 is none), cost of both, whether to
# count whatever the limits, seconds of the window. Fields are r or t and the second.
# Returns: counted or not, the server's seconds and microseconds, fields and values.
_COUNT = """
local t = redis.call('TIME')
local first = tonumber(t[1]) - ARGV[6]
local used, old = {r = 0, t = 0}, {}
local held = redis.call('HGETALL', KEYS[1])
for i = 1, #held, 2 do
  if tonumber(string.sub(held[i], 2)) < first then
    old[#old + 1] = held[i]
  else
    local kind = string.sub(held[i], 1, 1)
    used[kind] = used[kind] + held[i + 1]
  end
end
if #old > 0 then redis.call('HDEL', KEYS[1], unpack(old)) end
local function fits(kind, limit, cost)
  return tonumber(limit) < 0 or math.max(0, used[kind]) + cost <= tonumber(limit)
end
local counted = ARGV[5] == '1' or (fits('r', ARGV[1], ARGV[3]) and fits('t', ARGV[2], ARGV[4]))
if counted then
  if tonumber(ARGV[3]) ~= 0 then redis.call('HINCRBY', KEYS[1], 'r' .. t[1], ARGV[3]) end
  if tonumber(ARGV[4]) ~= 0 then redis.call('HINCRBY', KEYS[1], 't' .. t[1], ARGV[4]) end
  redis.call('EXPIRE', KEYS[1], ARGV[6] + 2)
end
return {counted and 1 or 0, t[1], t[2], redis.call('HGETALL', KEYS[1])}
"""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """Where the counters are."""

    url: str
    """For example redis://127.0.0.1:6379/0."""
    namespace: str = "tandem"
    """First part of every key."""
    timeout_s: float = 1.0
    """A request waits no longer than this for Redis, in seconds; the next ones do not wait."""
    probe_s: float = 1.0
    """Pause between two looks whether Redis answers, in seconds."""


class SharedQuotas:
    """Counts in Redis, or locally while it does not answer.

    Args:
        settings: where.
        on_fallback: told of every request that was judged without Redis.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, settings: SharedSettings, *, on_fallback: Callable[[], None]) -> None:
        self._settings = settings
        self._on_fallback = on_fallback
        self._redis = open_redis(
            settings.url,
            timeout_s=settings.timeout_s,
            # Once, for a connection that went stale; waiting longer is not worth it.
            retry=Retry(NoBackoff(), 1),
            max_connections=_MAX_CONNECTIONS,
        )
        self._count = script_of(self._redis, _COUNT)
        self._local = LocalQuotas()
        self._lost = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        """`shared`, or `degraded` while Redis is lost."""
        return "degraded" if self._lost else "shared"

    async def start(self) -> None:
        """Looks once, then again and again."""
        await self._look()
        self._watch = asyncio.create_task(self._keep_looking(), name="quota-store")

    async def take(self, key_id: str, *, limits: Limits, cost: Cost) -> Verdict:
        """Counts `cost` when all of it fits, else nothing."""
        if not self._lost:
            try:
                counted, now_s, use = await self._run(key_id, limits, cost)
            except LOST as error:
                self._lose(error)
            else:
                if counted:
                    await self._local.add(key_id, cost)
                asked = NOTHING if counted else cost
                return judge(use, limits=limits, cost=asked, now_s=now_s)
        self._on_fallback()
        return await self._local.take(key_id, limits=limits, cost=cost)

    async def add(self, key_id: str, cost: Cost) -> None:
        """Counts without looking at limits."""
        await self._local.add(key_id, cost)
        if self._lost:
            return
        try:
            await self._run(key_id, Limits(requests=None, tokens=None), cost, whatever=True)
        except LOST as error:
            self._lose(error)

    async def close(self) -> None:
        """Stops looking and disconnects; twice is fine."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        await self._redis.aclose()

    async def _run(
        self, key_id: str, limits: Limits, cost: Cost, *, whatever: bool = False
    ) -> tuple[bool, float, Use]:
        counted, seconds, micros, held = await self._count(
            keys=[f"{self._settings.namespace}:{{quota:{key_id}}}"],
            args=[
                _UNLIMITED if limits.requests is None else limits.requests,
                _UNLIMITED if limits.tokens is None else limits.tokens,
                cost.requests,
                cost.tokens,
                int(whatever),
                WINDOW_S,
            ],
        )
        amounts: dict[str, dict[int, int]] = {"r": {}, "t": {}}
        for field, amount in zip(held[::2], held[1::2], strict=True):
            amounts[field[0]][int(field[1:])] = int(amount)
        use = Use(requests=amounts["r"], tokens=amounts["t"])
        return bool(counted), int(seconds) + int(micros) / 1e6, use

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._settings.probe_s)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._redis.ping()
        except LOST as error:
            self._lose(error)
        else:
            if self._lost:
                _log.info("redis is back; quotas are shared again")
            self._lost = False

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            _log.warning("redis is lost; this gateway counts quotas alone", error=str(error))
        self._lost = True
