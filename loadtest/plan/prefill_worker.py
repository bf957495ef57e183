"""A prefill worker: one prompt after the other, each delivered beside the next."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.plan.clock import Clock
from loadtest.plan.decode_worker import DecodeWorker
from loadtest.plan.life import Life

FIRST_BACKOFF_S = 0.02
"""First backoff of a prompt for which no decode worker has room."""

MAX_BACKOFF_S = 1.0
"""Longest one; each is twice the one before."""

BUSY_RETRY_S = 0.05
"""What a worker without room advises: nobody asks sooner."""

RESERVE_WAIT_S = 10.0
"""After so long a prompt is turned away."""


class PromptWatcher(Protocol):
    """Hears how a prompt fares."""

    def started(self, life: Life) -> None:
        """It has its room and is computed."""

    def read(self, life: Life) -> None:
        """Its first token is there."""

    def sealed(self, life: Life, worker: int, decode: int) -> None:
        """A decode worker has its KV."""

    def refused(self, life: Life, worker: int) -> None:
        """No decode worker found room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Decode workers on the same host."""

    workers: Sequence[DecodeWorker] = ()
    """Which."""
    slowdown: float = 1.0
    """How much longer a prompt takes that begins while one of them steps."""


NOBODY = Neighbours()
"""A host of its own."""


class PrefillWorker:
    """Reserves, computes, delivers.

    Args:
        number: its place among the prefill workers.
        clock: simulated time.
        decodes: all decode workers.
        watcher: told of everything.
        shares_with: a decode worker on the same device, which rests while a prompt is computed.
        beside: decode workers that compete for the host's cores.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        *,
        decodes: Sequence[DecodeWorker],
        watcher: PromptWatcher,
        shares_with: DecodeWorker | None = None,
        beside: Neighbours = NOBODY,
    ) -> None:
        self._number = number
        self._clock = clock
        self._decodes = decodes
        self._watcher = watcher
        self._shares_with = shares_with
        self._beside = beside
        self._queue: deque[Life] = deque()
        self._busy = False
        self._sends_until = 0.0
        self.busy_s = 0.0

    def submit(self, life: Life) -> None:
        """Queues a prompt."""
        self._queue.append(life)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            self._reserve(self._queue.popleft(), waited=0.0, backoff=FIRST_BACKOFF_S)

    def _reserve(self, life: Life, *, waited: float, backoff: float) -> None:
        """The prompt at the head waits for room, and the others behind it."""
        for decode in life.decodes:
            if self._decodes[decode].reserve(life.work):
                self._watcher.started(life)
                self._begin(life, decode)
                return
        wait = max(backoff, BUSY_RETRY_S)
        if waited + wait > RESERVE_WAIT_S:
            self._watcher.refused(life, self._number)
            self._next()
            return
        again = min(MAX_BACKOFF_S, 2 * backoff)
        self._clock.after(wait, lambda: self._reserve(life, waited=waited + wait, backoff=again))

    def _begin(self, life: Life, decode: int) -> None:
        if self._shares_with is None:
            self._compute(life, decode)
        else:
            self._shares_with.pause(lambda: self._compute(life, decode))

    def _compute(self, life: Life, decode: int) -> None:
        began = self._clock.now
        beside = self._beside
        slowed = any(worker.stepping for worker in beside.workers)
        seconds = life.work.prefill_s * (beside.slowdown if slowed else 1.0)
        self.busy_s += seconds
        for worker in beside.workers:
            worker.prompt_beside(begins=True)
        self._clock.after(seconds, lambda: self._computed(life, decode, began))

    def _computed(self, life: Life, decode: int, began: float) -> None:
        life.first_at = self._clock.now
        for worker in self._beside.workers:
            worker.prompt_beside(begins=False)
        if self._shares_with is not None:
            self._shares_with.resume()
        self._watcher.read(life)
        arrives = self._delivered_at(life, self._decodes[decode], began)
        self._clock.after(
            arrives - self._clock.now, lambda: self._watcher.sealed(life, self._number, decode)
        )
        self._next()

    def _delivered_at(self, life: Life, decode: DecodeWorker, began: float) -> float:
        """Parts leave as they become final; one link out and one link in, one cache at a time."""
        work, took = life.work, self._clock.now - began
        part = work.transfer_s / len(work.ready)
        done = max(self._sends_until, decode.receives_until, began)
        for share in work.ready:
            done = max(done, began + share * took) + part
        self._sends_until = decode.receives_until = done
        return max(done, self._clock.now)
