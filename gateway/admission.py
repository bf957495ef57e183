"""Who may enter: a bound on the prompt tokens that wait for prefill."""

from collections.abc import Callable

from shared.errors import OverloadedError, UnavailableError

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 30.0


class Ticket:
    """One request's share of the queue; leaving twice is fine."""

    def __init__(self, tokens: int, leave: Callable[[int], None]) -> None:
        self.tokens = tokens
        self._leave: Callable[[int], None] | None = leave

    def leave(self) -> None:
        """Gives the share back: the prefill started, or the request is over."""
        if self._leave is not None:
            self._leave(self.tokens)
            self._leave = None


class Admission:
    """Counts waiting prompt tokens; one prompt may always wait alone, however long it is.

    Args:
        limit_tokens: bound of the sum.
        tokens_per_second: current prefill speed for the retry hint; 0 when unknown.
    """

    def __init__(
        self, limit_tokens: int, *, tokens_per_second: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._limit = limit_tokens
        self._speed = tokens_per_second
        self.queued_tokens = 0
        self.queued_requests = 0
        self.draining = False

    def enter(self, tokens: int) -> Ticket:
        """Lets a prompt wait.

        Raises:
            OverloadedError: too many tokens wait already.
            UnavailableError: the gateway is shutting down.
        """
        if self.draining:
            raise UnavailableError(
                "this gateway is shutting down and takes no new requests; send it again, "
                "another instance or the restarted one will answer",
                code="draining",
                retry_after_s=_MIN_RETRY_S,
            )
        if self.queued_requests and self.queued_tokens + tokens > self._limit:
            raise OverloadedError(
                f"{self.queued_tokens} prompt tokens already wait for prefill and this request has "
                f"{tokens}, over the limit of {self._limit}: the load is above the prefill "
                "capacity; wait as told by retry-after, or add prefill workers",
                retry_after_s=self._retry_after(),
            )
        self.queued_tokens += tokens
        self.queued_requests += 1
        return Ticket(tokens, self._left)

    def _left(self, tokens: int) -> None:
        self.queued_tokens -= tokens
        self.queued_requests -= 1

    def _retry_after(self) -> float:
        speed = self._speed()
        estimate = self.queued_tokens / speed if speed > 0 else _MIN_RETRY_S
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, estimate))
