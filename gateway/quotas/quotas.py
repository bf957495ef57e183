"""Charges requests to their keys and says when a key has used what it may."""

import math

from gateway.principal import Principal
from gateway.quotas.base import Cost, Limits, QuotaStore, Verdict
from gateway.quotas.report import current_report
from gateway.quotas.window import Standing
from shared.errors import RateLimitError


class Quotas:
    """The quotas of all keys.

    Args:
        store: counts.
        defaults: limits of keys that have none of their own.
    """

    def __init__(self, store: QuotaStore, *, defaults: Limits) -> None:
        self._store = store
        self._defaults = defaults

    @property
    def state(self) -> str:
        """`local`, `shared`, or `degraded` while the shared store is lost."""
        return self._store.state

    async def charge(self, principal: Principal, *, tokens: int) -> None:
        """Counts a prompt; parts of one API request count as one request.

        Raises:
            RateLimitError: the key has used up a limit, or the prompt is above it.
        """
        limits = self._limits(principal)
        if limits.none:
            return
        report = current_report()
        first = report is None or not report.charged
        cost = Cost(requests=int(first), tokens=tokens)
        verdict = await self._store.take(principal.key_id, limits=limits, cost=cost)
        if report is not None:
            report.note(verdict)
        if verdict.wait_s > 0:
            raise _exceeded(verdict, tokens)
        if report is not None:
            report.charged = True

    async def spent(self, principal: Principal, *, tokens: int) -> None:
        """Counts answer tokens, which nobody knew before; below 0 gives unused ones back."""
        if tokens and self._limits(principal).tokens is not None:
            await self._store.add(principal.key_id, Cost(requests=0, tokens=tokens))

    async def start(self) -> None:
        """Begins to watch the store."""
        await self._store.start()

    async def close(self) -> None:
        """Disconnects the store."""
        await self._store.close()

    def _limits(self, principal: Principal) -> Limits:
        own, defaults = principal.limits, self._defaults
        return Limits(
            requests=defaults.requests
            if own.requests_per_minute is None
            else own.requests_per_minute,
            tokens=defaults.tokens if own.tokens_per_minute is None else own.tokens_per_minute,
        )


def _exceeded(verdict: Verdict, tokens: int) -> RateLimitError:
    kind, full = _fullest(verdict)
    if math.isinf(full.wait_s):
        return RateLimitError(
            f"this request alone needs more {kind} than its key may use in a minute ({full.limit}; "
            f"its prompt has {tokens} tokens): shorten the prompt, or have the limit raised"
        )
    return RateLimitError(
        f"the key has used {full.used} of its {full.limit} {kind} a minute and this request needs "
        f"more than is left: its clients send too much; wait {full.wait_s:.1f} s, or have the "
        "limit raised",
        retry_after_s=full.wait_s,
    )


def _fullest(verdict: Verdict) -> tuple[str, Standing]:
    standings = (("requests", verdict.requests), ("tokens", verdict.tokens))
    known = [(kind, standing) for kind, standing in standings if standing is not None]
    return max(known, key=lambda pair: pair[1].wait_s)
