"""The way of a prompt from its arrival to a worker: quota, bounded queue, turn."""

import time
from collections.abc import Callable

from gateway.admission import Admission, Ticket, Waiting
from gateway.dispatcher import Dispatcher, Turn
from gateway.job import GenerationJob
from gateway.principal import Principal
from gateway.quotas.quotas import Quotas
from shared.errors import DeadlineError, OverloadedError


class Place:
    """One request in the queue, then at a worker; every method may be called twice."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._turn: Turn | None = None

    @property
    def waited_s(self) -> float:
        """Seconds in the gateway's queue; 0 before its turn."""
        return 0.0 if self._turn is None else self._turn.waited_s

    def take(self, turn: Turn) -> None:
        """Its turn came."""
        self._turn = turn

    def started(self) -> None:
        """A worker computes it: it waits no more."""
        self._ticket.leave()

    def served(self) -> None:
        """A worker has computed it and may get another one."""
        if self._turn is not None:
            self._turn.served()

    def leave(self) -> None:
        """The request is over."""
        self._ticket.leave()
        if self._turn is not None:
            self._turn.end()


class Entrance:
    """Lets prompts in.

    Args:
        admission: bounds of the queue.
        dispatcher: order of the queue.
        quotas: what keys may use.
        clock: monotonic seconds, the clock of deadlines.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        dispatcher: Dispatcher,
        quotas: Quotas,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admission = admission
        self._dispatcher = dispatcher
        self._quotas = quotas
        self._clock = clock

    def refuse_if_full(self, principal: Principal) -> None:
        """Before any work is done for a request: whether it has a chance.

        Raises:
            OverloadedError: the queue has room for nothing.
            UnavailableError: the gateway is shutting down.
        """
        self._admission.refuse_if_full(principal)

    async def enter(self, job: GenerationJob) -> Place:
        """A place in the queue, charged to the key.

        Raises:
            OverloadedError: the queue is full, or too long for this request's time.
            RateLimitError: the key has used what it may.
            UnavailableError: the gateway is shutting down.
        """
        tokens, principal = len(job.prompt_ids), job.principal
        waiting = Waiting(
            ahead_tokens=self._dispatcher.ahead(tokens, principal),
            remaining_s=job.deadline - self._clock(),
        )
        ticket = self._admission.enter(tokens, principal=principal, waiting=waiting)
        try:
            await self._quotas.charge(principal, tokens=tokens)
        except BaseException:
            ticket.leave()
            raise
        return Place(ticket)

    async def answered(self, job: GenerationJob, *, tokens: int) -> None:
        """Charges the tokens of answers to the key."""
        await self._quotas.spent(job.principal, tokens=tokens)

    async def wait(self, place: Place, job: GenerationJob) -> None:
        """Waits for the turn; a cancel leaves the queue at once.

        Raises:
            OverloadedError: it did not come within the longest wait.
            DeadlineError: the request's time ended first.
        """
        tokens, longest = len(job.prompt_ids), self._admission.max_wait_s
        remaining = job.deadline - self._clock()
        try:
            turn = await self._dispatcher.turn(
                tokens, job.principal, timeout_s=max(0.0, min(longest, remaining))
            )
        except TimeoutError:
            await self._quotas.spent(job.principal, tokens=-tokens)
            if remaining <= longest:
                raise DeadlineError(
                    "the request's time ended while it waited for a prefill worker: the load is "
                    "above the prefill capacity; allow more time or add prefill workers"
                ) from None
            raise OverloadedError(
                f"no prefill worker had room for this request within {longest:.0f} s: the load is "
                "above the prefill capacity; wait as told by retry-after, or add prefill workers",
                retry_after_s=self._admission.retry_after(tokens),
            ) from None
        place.take(turn)
