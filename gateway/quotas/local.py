"""Quotas of one gateway, in its memory."""

import time
from collections import defaultdict
from collections.abc import Callable

from gateway.quotas.base import NOTHING, Cost, Limits, Use, Verdict, judge
from gateway.quotas.window import first_counted

_SWEEP_KEYS = 256


class _Counters:
    def __init__(self) -> None:
        self.requests: dict[int, int] = defaultdict(int)
        self.tokens: dict[int, int] = defaultdict(int)
        self.use = Use(requests=self.requests, tokens=self.tokens)

    def add(self, cost: Cost, *, now_s: float) -> None:
        for buckets, amount in ((self.requests, cost.requests), (self.tokens, cost.tokens)):
            if amount:
                buckets[int(now_s)] += amount

    def forget(self, before: int) -> bool:
        """Drops old buckets; True when nothing is left."""
        for buckets in (self.requests, self.tokens):
            for second in [s for s in buckets if s < before]:
                del buckets[second]
        return not self.requests and not self.tokens


class LocalQuotas:
    """Windows in a dict; keys that were quiet for a minute are forgotten.

    Args:
        clock: seconds that never go back.
    """

    state = "local"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters: dict[str, _Counters] = {}

    async def start(self) -> None:
        """Nothing to connect to."""

    async def take(self, key_id: str, *, limits: Limits, cost: Cost) -> Verdict:
        """Counts `cost` when all of it fits, else nothing."""
        now_s, counters = self._clock(), self._of(key_id)
        asked = judge(counters.use, limits=limits, cost=cost, now_s=now_s)
        if asked.wait_s > 0:
            return asked
        counters.add(cost, now_s=now_s)
        return judge(counters.use, limits=limits, cost=NOTHING, now_s=now_s)

    async def add(self, key_id: str, cost: Cost) -> None:
        """Counts without looking at limits."""
        self._of(key_id).add(cost, now_s=self._clock())

    async def close(self) -> None:
        """Nothing to close."""

    def _of(self, key_id: str) -> _Counters:
        before = first_counted(self._clock())
        if len(self._counters) > _SWEEP_KEYS:
            self._counters = {k: c for k, c in self._counters.items() if not c.forget(before)}
        counters = self._counters.setdefault(key_id, _Counters())
        counters.forget(before)
        return counters
