"""Who may enter: bounds on the prompts that wait for prefill, in tokens, in number and in time."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.principal import ANONYMOUS, Principal
from shared.errors import OverloadedError, UnavailableError

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known about a prompt that wants to enter."""

    ahead_tokens: int = 0
    """Prompt tokens that are served before it, by the order of the queue."""
    remaining_s: float = float("inf")
    """Time that its request has left, in seconds."""


class Ticket:
    """One request's share of the queue; leaving twice is fine."""

    def __init__(self, tokens: int, *, key_id: str, leave: Callable[["Ticket"], None]) -> None:
        self.tokens = tokens
        self.key_id = key_id
        self._leave: Callable[[Ticket], None] | None = leave

    def leave(self) -> None:
        """Gives the share back: the prefill started, or the request is over."""
        if self._leave is not None:
            self._leave(self)
            self._leave = None


class Admission:
    """Counts prompts from their arrival to the start of their prefill, wherever they wait.

    One prompt of each key may always wait, however long it is: no key is kept out by the load of
    another one.

    Args:
        limit_tokens: bound of their tokens.
        max_requests: bound of their number.
        max_wait_s: nobody enters who would wait longer, as far as the speed is known.
        tokens_per_second: current prefill speed of all workers; 0 when unknown.
    """

    def __init__(
        self,
        limit_tokens: int,
        *,
        max_requests: int = 1024,
        max_wait_s: float = float("inf"),
        tokens_per_second: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._limit = limit_tokens
        self._max_requests = max_requests
        self.max_wait_s = max_wait_s
        self._speed = tokens_per_second
        self._tickets: dict[Ticket, None] = {}
        self._by_key: dict[str, int] = {}
        self.queued_tokens = 0
        self.draining = False

    @property
    def queued_requests(self) -> int:
        """Requests that wait."""
        return len(self._tickets)

    def enter(
        self, tokens: int, *, principal: Principal = ANONYMOUS, waiting: Waiting | None = None
    ) -> Ticket:
        """Lets a prompt wait.

        Raises:
            OverloadedError: too much waits already, or this one could not be served in time.
            UnavailableError: the gateway is shutting down.
        """
        self._refuse_when_draining()
        key_id = principal.key_id
        if key_id in self._by_key:
            self._check_room(tokens)
        self._check_wait(tokens, waiting if waiting is not None else Waiting())
        ticket = Ticket(tokens, key_id=key_id, leave=self._left)
        self._tickets[ticket] = None
        self._by_key[key_id] = self._by_key.get(key_id, 0) + 1
        self.queued_tokens += tokens
        return ticket

    def refuse_if_full(self, principal: Principal) -> None:
        """Spares the work of reading a request that could not enter, however short it is.

        Raises:
            OverloadedError: there is room for nothing.
            UnavailableError: the gateway is shutting down.
        """
        self._refuse_when_draining()
        full = self.queued_tokens >= self._limit or len(self._tickets) >= self._max_requests
        if full and principal.key_id in self._by_key:
            raise OverloadedError(
                f"{len(self._tickets)} requests with {self.queued_tokens} prompt tokens already "
                "wait for prefill and there is no room: the load is above the prefill capacity; "
                "wait as told by retry-after, or add prefill workers",
                retry_after_s=self.retry_after(1),
            )

    def retry_after(self, tokens: int) -> float:
        """Seconds until `tokens` find room at the present speed, within 1 and 30."""
        excess = self.queued_tokens + tokens - self._limit
        too_many = len(self._tickets) + 1 - self._max_requests
        freed = 0
        # Prompts start whole, about in order of arrival.
        for left, ticket in enumerate(self._tickets):
            if freed >= excess and left >= too_many:
                break
            freed += ticket.tokens
        return self._bounded(freed)

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise UnavailableError(
                "this gateway is shutting down and takes no new requests; send it again, "
                "another instance or the restarted one will answer",
                code="draining",
                retry_after_s=_MIN_RETRY_S,
            )

    def _check_room(self, tokens: int) -> None:
        if self.queued_tokens + tokens > self._limit:
            raise OverloadedError(
                f"{self.queued_tokens} prompt tokens already wait for prefill and this request has "
                f"{tokens}, over the limit of {self._limit}: the load is above the prefill "
                "capacity; wait as told by retry-after, or add prefill workers",
                retry_after_s=self.retry_after(tokens),
            )
        if len(self._tickets) >= self._max_requests:
            raise OverloadedError(
                f"{len(self._tickets)} requests already wait for prefill, the limit: the load is "
                "above the prefill capacity; wait as told by retry-after, or add prefill workers",
                retry_after_s=self.retry_after(tokens),
            )

    def _check_wait(self, tokens: int, waiting: Waiting) -> None:
        """Only what others need counts: a prompt that nobody is ahead of is always tried."""
        speed = self._speed()
        if speed <= 0 or waiting.ahead_tokens <= 0:
            return
        wait, longest = waiting.ahead_tokens / speed, min(self.max_wait_s, waiting.remaining_s)
        if wait > longest:
            raise OverloadedError(
                f"{waiting.ahead_tokens} prompt tokens are ahead of this request's {tokens} and "
                f"take about {wait:.1f} s at the present speed, more than the {longest:.1f} s that "
                "it may wait; send it again as told by retry-after, or add prefill workers",
                retry_after_s=self._bounded((wait - longest) * speed),
            )

    def _bounded(self, tokens: float) -> float:
        speed = self._speed()
        estimate = tokens / speed if speed > 0 else _MIN_RETRY_S
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, estimate))

    def _left(self, ticket: Ticket) -> None:
        del self._tickets[ticket]
        self.queued_tokens -= ticket.tokens
        self._by_key[ticket.key_id] -= 1
        if not self._by_key[ticket.key_id]:
            del self._by_key[ticket.key_id]
