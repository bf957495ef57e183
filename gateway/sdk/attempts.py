"""The tries of one call: how much time is left, and whether another one makes sense."""

import random
import time
from collections.abc import Callable

from gateway.sdk.settings import Retry
from shared.errors import OverloadedError, RateLimitError, TandemError, UnavailableError


class Attempts:
    """Counts tries against one deadline.

    Args:
        retry: how often and after which pauses.
        timeout_s: life of the call from now on, in seconds; None is no limit.
        jitter: spreads the pauses of clients that failed together.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        retry: Retry,
        *,
        timeout_s: float | None,
        jitter: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retry = retry
        self._jitter = jitter
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._failed = 0

    def remaining_s(self) -> float | None:
        """Time left, at least 0; None is no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def pause_s(self, error: TandemError) -> float | None:
        """How long to wait before the call is made again; None: `error` is its end.

        Nothing was generated when there was no worker, no connection or no room. Other failures
        may come again at once, or have cost the pair a prefill: those are the caller's to repeat.
        """
        self._failed += 1
        asked = error.retry_after_s
        again = isinstance(error, UnavailableError) or (
            isinstance(error, OverloadedError | RateLimitError) and asked is not None
        )
        if not again or self._failed >= self._retry.attempts:
            return None
        growing = self._retry.pause_s * 2 ** (self._failed - 1)
        own = min(growing, self._retry.longest_s) * self._jitter.uniform(0.5, 1.0)
        pause, remaining = max(own, asked or 0.0), self.remaining_s()
        too_late = remaining is not None and pause >= remaining
        return None if too_late or pause > self._retry.longest_s else pause
