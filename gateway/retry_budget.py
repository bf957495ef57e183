"""How many retries there may be: a share of the recent requests, so that retries cannot add up.

Without it a service that fails under load gets two or three times that load.
"""

import time
from collections.abc import Callable

from shared.errors import TandemError

WINDOW_S = 10
"""Seconds that count as recent."""


class RetryBudget:
    """Counts requests and retries of the last seconds.

    Args:
        share: retries per request, for example 0.1.
        always: retries in the window that are allowed in any case: with little traffic a share
            would be none.
        on_denied: told of every retry that was not allowed.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        always: int,
        on_denied: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._always = always
        self._on_denied = on_denied
        self._clock = clock
        self._requests: dict[int, int] = {}
        self._retries: dict[int, int] = {}

    def request(self) -> None:
        """A request came."""
        self._count(self._requests)

    def take(self) -> bool:
        """Uses up one retry; False when there is none left."""
        allowed = max(self._always, int(self._share * self._recent(self._requests)))
        if self._recent(self._retries) >= allowed:
            self._on_denied()
            return False
        self._count(self._retries)
        return True

    def _count(self, counts: dict[int, int]) -> None:
        self._recent(counts)
        second = int(self._clock())
        counts[second] = counts.get(second, 0) + 1

    def _recent(self, counts: dict[int, int]) -> int:
        oldest = int(self._clock()) - WINDOW_S
        for second in [s for s in counts if s <= oldest]:
            del counts[second]
        return sum(counts.values())


def without_budget(error: TandemError) -> TandemError:
    """The error of a request that would have been tried again; its text names the setting."""
    return type(error)(
        f"{error.message}; the gateway did not try again by itself, because the retries of the "
        "last seconds used up its retry_budget and retry_floor",
        code=error.error_code,
        param=error.param,
        retry_after_s=error.retry_after_s,
    )
