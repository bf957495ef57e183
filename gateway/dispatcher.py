"""Prompts wait here, in fair order, while every prefill worker has enough to do.

What has been sent to a worker can no longer be put in order, so little is: enough that no worker
is ever idle, which is one prompt in compute and one behind it, or more short ones.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.fair_queue import FairQueue
from gateway.principal import Principal
from gateway.service_rate import ServiceRate

PROMPTS_PER_WORKER = 2
"""Prompts that a worker gets whatever their length: one to compute, one to go on with."""


@dataclass(eq=False, slots=True)
class _Waiter:
    tokens: int
    granted: asyncio.Future[None]


class Turn:
    """A prompt at the workers, from its dispatch to its first token; ending twice is fine.

    Args:
        waited_s: how long it waited here.
        end: told of the end, with the tokens that were read.
    """

    def __init__(self, tokens: int, *, waited_s: float, end: Callable[[int, int], None]) -> None:
        self.waited_s = waited_s
        self._tokens = tokens
        self._end: Callable[[int, int], None] | None = end

    def served(self) -> None:
        """The prompt was read to its end."""
        self._finish(read=self._tokens)

    def end(self) -> None:
        """The request is over; without effect after `served`."""
        self._finish(read=0)

    def _finish(self, *, read: int) -> None:
        if self._end is not None:
            end, self._end = self._end, None
            end(self._tokens, read)


class Dispatcher:
    """Grants turns.

    Args:
        worker_tokens: prompt tokens that are sent to one worker before others wait here.
        workers: number of prefill workers that take work; with none, nobody waits in vain.
        rate: told of every turn.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        worker_tokens: int,
        *,
        workers: Callable[[], int],
        rate: ServiceRate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_tokens = worker_tokens
        self._workers = workers
        self._rate = rate
        self._clock = clock
        self._queue: FairQueue[_Waiter] = FairQueue()
        self.sent_tokens = 0
        self.sent_prompts = 0

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return len(self._queue)

    def ahead(self, tokens: int, principal: Principal) -> int:
        """Prompt tokens that are served before a new prompt; 0 when it would be sent at once."""
        if not len(self._queue) and self._fits(tokens):
            return 0
        weight = principal.limits.weight
        in_line = self._queue.ahead(key=principal.key_id, cost=tokens, weight=weight)
        return self.sent_tokens + in_line

    async def turn(self, tokens: int, principal: Principal, *, timeout_s: float) -> Turn:
        """Waits for a turn; a cancel leaves the queue.

        Raises:
            TimeoutError: `timeout_s` was not enough.
        """
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
        began = self._clock()
        entry = self._queue.push(
            waiter, key=principal.key_id, cost=tokens, weight=principal.limits.weight
        )
        self.poke()
        try:
            if not waiter.granted.done():
                async with asyncio.timeout(timeout_s):
                    await waiter.granted
        except BaseException:
            # Granted and given up in the same moment: the place must not be lost.
            if not self._queue.remove(entry):
                self._ended(tokens, 0)
            raise
        return Turn(tokens, waited_s=self._clock() - began, end=self._ended)

    def poke(self) -> None:
        """Grants what fits now; to be called when there may be more or fewer workers."""
        while (head := self._queue.head()) is not None and self._fits(head.cost):
            self._queue.pop()
            self.sent_tokens += head.cost
            self.sent_prompts += 1
            self._rate.begin()
            if not head.item.granted.done():
                head.item.granted.set_result(None)

    def _fits(self, tokens: int) -> bool:
        workers = self._workers()
        if workers == 0:
            return True
        if self.sent_prompts < PROMPTS_PER_WORKER * workers:
            return True
        return self.sent_tokens + tokens <= self._worker_tokens * workers

    def _ended(self, tokens: int, read: int) -> None:
        self.sent_tokens -= tokens
        self.sent_prompts -= 1
        self._rate.end(read)
        self.poke()
