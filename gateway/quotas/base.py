"""What a store of quotas does and answers."""

from dataclasses import dataclass
from typing import Protocol

from gateway.quotas.window import Buckets, Standing, standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one key, in any minute; None is no limit."""

    requests: int | None
    """Requests."""
    tokens: int | None
    """Prompt and answer tokens."""

    @property
    def none(self) -> bool:
        """Whether there is nothing to count."""
        return self.requests is None and self.tokens is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a request takes from its key's limits."""

    requests: int
    """0 or 1: parts of one API request count once."""
    tokens: int
    """Prompt tokens at the beginning, answer tokens at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where a key stands after its request was counted, or was refused and not counted."""

    requests: Standing | None
    """None without a limit."""
    tokens: Standing | None
    """None without a limit."""

    @property
    def wait_s(self) -> float:
        """Seconds until the request fits; 0 when it was counted."""
        return max((s.wait_s for s in (self.requests, self.tokens) if s is not None), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a key used, second by second."""

    requests: Buckets
    """Requests."""
    tokens: Buckets
    """Tokens."""


NOTHING = Cost(requests=0, tokens=0)
"""Asks where a key stands."""


def judge(use: Use, *, limits: Limits, cost: Cost, now_s: float) -> Verdict:
    """What a key's use and limits say to `cost`."""

    def of(buckets: Buckets, limit: int | None, asked: int) -> Standing | None:
        if limit is None:
            return None
        return standing(buckets, now_s=now_s, limit=limit, asked=asked)

    return Verdict(
        requests=of(use.requests, limits.requests, cost.requests),
        tokens=of(use.tokens, limits.tokens, cost.tokens),
    )


class QuotaStore(Protocol):
    """Counts by key; never raises because of a lost server."""

    @property
    def state(self) -> str:
        """`local`, `shared`, or `degraded` while the shared store is lost."""
        ...

    async def start(self) -> None:
        """Begins to watch the store; a lost one does not raise."""
        ...

    async def take(self, key_id: str, *, limits: Limits, cost: Cost) -> Verdict:
        """Counts `cost` when all of it fits, else nothing."""
        ...

    async def add(self, key_id: str, cost: Cost) -> None:
        """Counts what was used already, over the limit or not; below 0 gives back."""
        ...

    async def close(self) -> None:
        """Disconnects; twice is fine."""
        ...
