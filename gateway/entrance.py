"""The way of a prompt from its arrival to a worker: quota, bounded queue, turn.

There are two queues: for the prefill workers, and for decode workers that read prompts themselves.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from gateway.admission import Ticket
from gateway.dispatcher import Turn
from gateway.job import GenerationJob
from gateway.lane import Lane
from gateway.local_prefill import LocalReason, Router
from gateway.principal import Principal
from gateway.quotas.quotas import Quotas
from shared.errors import DeadlineError, OverloadedError

T = TypeVar("T")


class Place:
    """One request in the queue, then at a worker; every method may be called twice."""

    def __init__(self, ticket: Ticket, *, local: LocalReason | None) -> None:
        self._ticket = ticket
        self._turn: Turn | None = None
        self.local = local
        """Why a decode worker is to read the prompt itself; None: a prefill worker is."""

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
        pool: the line for the prefill workers.
        local: the line for decode workers that read prompts themselves.
        router: decides between them.
        quotas: what keys may use.
        clock: monotonic seconds, the clock of deadlines.
    """

    def __init__(
        self,
        pool: Lane,
        *,
        local: Lane,
        router: Router,
        quotas: Quotas,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.local = local
        self._router = router
        self._quotas = quotas
        self._clock = clock

    @property
    def queued_requests(self) -> int:
        """Requests whose prefill has not begun."""
        return sum(lane.admission.queued_requests for lane in (self.pool, self.local))

    @property
    def queued_tokens(self) -> int:
        """Their prompt tokens."""
        return sum(lane.admission.queued_tokens for lane in (self.pool, self.local))

    @property
    def draining(self) -> bool:
        """Whether everybody is refused."""
        return self.pool.admission.draining

    def drain(self) -> None:
        """Refuses everybody from now on; the gateway shuts down."""
        for lane in (self.pool, self.local):
            lane.admission.draining = True

    def poke(self) -> None:
        """Lets prompts go on that could; to be called when workers may have come or gone."""
        for lane in (self.pool, self.local):
            lane.dispatcher.poke()

    def refuse_if_full(self, principal: Principal) -> None:
        """Before any work is done for a request: whether it has a chance in any line.

        Raises:
            OverloadedError: the queue has room for nothing.
            UnavailableError: the gateway is shutting down.
        """
        self._first_open(1, lambda lane: lane.admission.refuse_if_full(principal))

    async def enter(self, job: GenerationJob) -> Place:
        """A place in the better queue that has room, charged to the key.

        Raises:
            OverloadedError: the queue is full, or too long for this request's time.
            RateLimitError: the key has used what it may.
            UnavailableError: the gateway is shutting down.
        """
        way, ticket = self._first_open(
            len(job.prompt_ids), lambda lane: lane.enter(job, clock=self._clock)
        )
        place = Place(ticket, local=way)
        try:
            await self._quotas.charge(job.principal, tokens=len(job.prompt_ids))
        except BaseException:
            place.leave()
            raise
        return place

    async def answered(self, job: GenerationJob, *, tokens: int) -> None:
        """Charges the tokens of answers to the key."""
        await self._quotas.spent(job.principal, tokens=tokens)

    async def wait(self, place: Place, job: GenerationJob) -> None:
        """Waits for the turn; a cancel leaves the queue at once.

        Raises:
            OverloadedError: it did not come within the longest wait.
            DeadlineError: the request's time ended first.
        """
        lane, tokens = self._lane(place.local), len(job.prompt_ids)
        longest = lane.admission.max_wait_s
        remaining = job.deadline - self._clock()
        try:
            turn = await lane.dispatcher.turn(
                tokens, job.principal, timeout_s=max(0.0, min(longest, remaining))
            )
        except TimeoutError:
            if remaining > longest and self._may_move(place, tokens):
                place.local = LocalReason.QUEUE_FULL  # the queue of its worker bounds it now
                return
            await self._quotas.spent(job.principal, tokens=-tokens)
            if remaining <= longest:
                raise DeadlineError(
                    "the request's time ended while it waited for a prefill worker: the load is "
                    "above the prefill capacity; allow more time or add prefill workers"
                ) from None
            raise OverloadedError(
                f"no prefill worker had room for this request within {longest:.0f} s: the load is "
                "above the prefill capacity; wait as told by retry-after, or add prefill workers",
                retry_after_s=lane.admission.retry_after(tokens),
            ) from None
        place.take(turn)

    def _first_open(self, tokens: int, enter: Callable[[Lane], T]) -> tuple[LocalReason | None, T]:
        """The best way of a prompt whose line lets it in; else the refusal of the best of all."""
        refused: OverloadedError | None = None
        for way in self._router.ways(tokens):
            try:
                return way, enter(self._lane(way))
            except OverloadedError as error:
                refused = refused or error
        assert refused is not None, "there is at least one way"
        raise refused

    def _may_move(self, place: Place, tokens: int) -> bool:
        """Whether a prompt that waited for the prefill workers in vain may be read elsewhere."""
        return place.local is None and LocalReason.QUEUE_FULL in self._router.ways(tokens)

    def _lane(self, way: LocalReason | None) -> Lane:
        return self.pool if way is None else self.local
