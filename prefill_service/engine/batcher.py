"""Takes prompts from the queue in turn, and has those that are ready computed in one pass.

Nobody waits for company: whenever the engine thread is free, all prompts that are ready go. With
packing, prompts for the next pass are taken while a pass runs, and get ready meanwhile: they wait
for memory and for room on the decode side, each by itself, so that a slow peer does not hold up
those that fit beside its prompt. They are taken strictly in order; what does not fit into the next
pass waits, and so does what is behind it. A prompt longer than a pack goes alone. Without packing a
prompt is taken once the one before it was computed.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prefill_service.engine.compute import Computed, ComputeThread, PromptWork
from prefill_service.engine.job import PrefillJob, Started
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.queue import SpeedMeter, TokenQueue
from shared.errors import TandemError
from shared.types.handoff import HandoffKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLimits:
    """How much goes into one pass."""

    tokens: int = 0
    """Most prompt tokens, except for a prompt alone; 0 packs nothing."""
    prompts: int = 1
    """Most prompts."""

    @property
    def packs(self) -> bool:
        """Whether prompts are ever computed together."""
        return self.tokens > 0 and self.prompts > 1

    def fits(self, tokens: int, *, beside: Sequence[int]) -> bool:
        """Whether a prompt fits into the pass of others, all of them by their tokens."""
        if not beside:
            return True
        return len(beside) < self.prompts and sum(beside) + tokens <= self.tokens


class Turn:
    """A prompt's place in a pass; it must be left, in time or early.

    Args:
        job: whose place it is.
        batcher: where.
    """

    def __init__(self, job: PrefillJob, *, batcher: "Batcher") -> None:
        self.job = job
        self._batcher = batcher

    def compute(self, plan: PromptPlan, slab: PromptSlab) -> Coroutine[Any, Any, Computed]:
        """Goes into the next pass at once; what is returned waits for the pass and for its end.

        The place is left then. It raises a TandemError when the pass failed or was stopped.
        """
        work = PromptWork(self.job, plan=plan, slab=slab)
        return self._computed(work, begun=self._batcher.ready(self, work))

    async def _computed(self, work: PromptWork, *, begun: asyncio.Event) -> Computed:
        try:
            await self.job.unless_stopped(begun.wait())
        except TandemError:
            # Once begun, the engine thread writes to the slab until it has seen the stop.
            if not begun.is_set():
                self._batcher.withdraw(work)
                raise
        return await work.computed

    def leave(self) -> None:
        """Gives the place up; twice is fine."""
        self._batcher.leave(self)


class Batcher:
    """Decides what is computed next; all methods belong to one loop.

    Args:
        queue: waiting prompts.
        compute: the engine thread.
        limits: how much goes into one pass.
        speed: is told the speed of every pass.
        passed: is told prompts and tokens of every pass.
    """

    def __init__(
        self,
        queue: TokenQueue,
        *,
        compute: ComputeThread,
        limits: PackLimits,
        speed: SpeedMeter,
        passed: Callable[[int, int], None],
    ) -> None:
        self._queue = queue
        self._compute = compute
        self._limits = limits
        self._speed = speed
        self._passed = passed
        self._places: set[Turn] = set()
        self._ready: list[tuple[Turn, PromptWork, asyncio.Event]] = []
        self._look_again = asyncio.Event()
        self._some_ready = asyncio.Event()

    async def next(self) -> Turn:
        """The turn of the first prompt in the queue, as soon as there is a place for it."""
        while True:
            first = await self._queue.first()
            if self._limits.fits(first.tokens, beside=[t.job.tokens for t in self._places]):
                turn = Turn(await self._queue.get(), batcher=self)
                self._places.add(turn)
                return turn
            self._look_again.clear()
            await self._look_again.wait()

    def drop(self, key: HandoffKey) -> bool:
        """Takes a prompt out of the queue; False when it does not wait there.

        Whoever is first now may fit where that one did not.
        """
        dropped = self._queue.remove(key) is not None
        if dropped:
            self._look_again.set()
        return dropped

    async def run_passes(self) -> None:
        """Computes what is ready, pass after pass, until it is cancelled."""
        while True:
            await self._some_ready.wait()
            await self._run_pass()

    def ready(self, turn: Turn, work: PromptWork) -> asyncio.Event:
        """Puts a prompt into the next pass; the event is set when that begins."""
        begun = asyncio.Event()
        self._ready.append((turn, work, begun))
        self._some_ready.set()
        return begun

    def withdraw(self, work: PromptWork) -> None:
        """Takes a prompt out of the next pass."""
        self._ready = [each for each in self._ready if each[1] is not work]

    def leave(self, turn: Turn) -> None:
        """A place is free again."""
        self._places.discard(turn)
        self._look_again.set()

    async def _run_pass(self) -> None:
        going, self._ready = self._ready, []
        self._some_ready.clear()
        if not going:
            return
        for turn, work, begun in going:
            turn.job.emit(Started(time.monotonic() - turn.job.created, work.plan.summary))
            begun.set()
            if self._limits.packs:
                self.leave(turn)
        pack = [work for _, work, _ in going]
        began = time.monotonic()
        await self._compute.run(pack)
        done = [w.job.tokens for w in pack if w.computed.done() and not _failed(w.computed)]
        if done:
            self._speed.record(sum(done), time.monotonic() - began)
            self._passed(len(done), sum(done))
        for turn, _, _ in going:
            self.leave(turn)


def _failed(computed: asyncio.Future[Computed]) -> bool:
    return computed.cancelled() or computed.exception() is not None
