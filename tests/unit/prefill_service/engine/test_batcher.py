"""Who is computed with whom: in order, within the limits, and without waiting for company."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_service.engine.batcher import Batcher, PackLimits, Turn
from prefill_service.engine.compute import Computed, PromptWork
from prefill_service.engine.job import PrefillJob
from prefill_service.engine.queue import SpeedMeter, TokenQueue
from shared.errors import CancelledError, InternalError
from tests.support.prefill_jobs import job_of
from tests.support.waiting import until

_PLAN: Any = SimpleNamespace(summary="as planned")


class Passes:
    """Stands for the engine thread: a pass lasts until it is let go."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        """Tokens of each pass's prompts."""
        self.broken = False
        self._ends = asyncio.Semaphore(0)

    async def run(self, pack: Sequence[PromptWork]) -> None:
        self.begun.append([work.job.tokens for work in pack])
        await self._ends.acquire()
        for work in pack:
            if self.broken:
                work.computed.set_exception(InternalError("planted"))
            else:
                work.computed.set_result(cast("Computed", work.job.tokens))

    def end_one(self) -> None:
        self._ends.release()


class Rig:
    """A batcher whose prompts get ready when they are told to."""

    def __init__(self, limits: PackLimits) -> None:
        self.passes = Passes()
        self.speed = SpeedMeter()
        self.queue = TokenQueue(1 << 20, speed=self.speed)
        self.told: list[tuple[int, int]] = []
        self.taken: list[int] = []
        self.slow: dict[int, asyncio.Event] = {}
        """Prompts, by tokens, that are not ready before their event is set."""
        self.ends: dict[PrefillJob, asyncio.Task[Computed]] = {}
        self.batcher = Batcher(
            self.queue,
            compute=cast("Any", self.passes),
            limits=limits,
            speed=self.speed,
            passed=lambda prompts, tokens: self.told.append((prompts, tokens)),
        )

    async def turns(self) -> None:
        while True:
            turn = await self.batcher.next()
            self.taken.append(turn.job.tokens)
            self.ends[turn.job] = asyncio.create_task(self._serve(turn))

    async def _serve(self, turn: Turn) -> Computed:
        try:
            if (ready := self.slow.get(turn.job.tokens)) is not None:
                await turn.job.unless_stopped(ready.wait())
            return await turn.compute(_PLAN, cast("Any", None))
        finally:
            turn.leave()

    def put(self, *tokens: int) -> list[PrefillJob]:
        jobs = [job_of(n) for n in tokens]
        for job in jobs:
            self.queue.put(job)
        return jobs

    async def begun(self, *packs: list[int]) -> None:
        await until(lambda: self.passes.begun == list(packs))


@asynccontextmanager
async def rig_of(*, tokens: int = 0, prompts: int = 8) -> AsyncIterator[Rig]:
    rig = Rig(PackLimits(tokens=tokens, prompts=prompts))
    loops = [asyncio.create_task(rig.turns()), asyncio.create_task(rig.batcher.run_passes())]
    try:
        yield rig
    finally:
        tasks = [*loops, *rig.ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"tokens": 100, "prompts": 1}])
async def test_without_packing_one_after_the_other(limits: dict[str, int]) -> None:
    async with rig_of(**limits) as rig:
        rig.put(10, 20, 30)
        await rig.begun([10])
        assert rig.taken == [10], "nothing is prepared ahead"
        rig.passes.end_one()
        await rig.begun([10], [20])
        assert rig.told == [(1, 10)]


async def test_the_first_does_not_wait_and_the_others_go_together() -> None:
    async with rig_of(tokens=100) as rig:
        rig.put(10)
        await rig.begun([10])
        rig.put(20, 30, 40, 50)
        await settled()
        assert rig.taken == [10, 20, 30, 40], "50 does not fit beside these"
        rig.passes.end_one()
        await rig.begun([10], [20, 30, 40])
        rig.passes.end_one()
        await rig.begun([10], [20, 30, 40], [50])
        rig.passes.end_one()
        await until(lambda: rig.told == [(1, 10), (3, 90), (1, 50)])
        assert rig.speed.tokens_per_second > 0


async def test_what_does_not_fit_is_not_overtaken() -> None:
    async with rig_of(tokens=100) as rig:
        rig.put(10)
        await rig.begun([10])
        rig.put(60, 61, 5, 300, 6)
        for _ in range(4):
            rig.passes.end_one()
        await rig.begun([10], [60], [61, 5], [300], [6])


async def test_most_prompts_of_a_pass() -> None:
    async with rig_of(tokens=100, prompts=2) as rig:
        rig.put(1)
        await rig.begun([1])
        rig.put(2, 3, 4)
        rig.passes.end_one()
        await rig.begun([1], [2, 3])


async def test_one_that_is_slow_to_get_ready_holds_up_nobody() -> None:
    async with rig_of(tokens=100) as rig:
        rig.slow[20] = asyncio.Event()
        rig.put(20, 30)
        await rig.begun([30])
        rig.slow[20].set()
        rig.put(40)
        await settled()
        rig.passes.end_one()
        await until(lambda: [sorted(pack) for pack in rig.passes.begun] == [[30], [20, 40]])


async def test_when_the_first_goes_the_next_one_may_fit() -> None:
    async with rig_of(tokens=100) as rig:
        rig.slow[60] = asyncio.Event()
        _, first, _ = rig.put(60, 50, 30)
        await settled()
        assert rig.taken == [60], "50 does not fit beside it"
        assert rig.batcher.drop(first.key)
        await rig.begun([30])
        assert not rig.batcher.drop(first.key)


async def test_a_stop_before_the_pass_costs_no_compute() -> None:
    async with rig_of(tokens=100) as rig:
        rig.put(10)
        await rig.begun([10])
        stopped, _ = rig.put(20, 30)
        await until(lambda: rig.taken == [10, 20, 30])
        await settled()
        assert stopped.stop(CancelledError("enough"))
        with pytest.raises(CancelledError, match="enough"):
            await rig.ends[stopped]
        rig.passes.end_one()
        await rig.begun([10], [30])


async def test_a_stop_in_the_pass_is_heard_when_the_thread_is_done_with_it() -> None:
    async with rig_of(tokens=100) as rig:
        (job,) = rig.put(10)
        await rig.begun([10])
        job.stop(CancelledError("enough"))
        await settled()
        assert not rig.ends[job].done(), "the thread may still write to its slab"
        rig.passes.broken = True
        rig.passes.end_one()
        with pytest.raises(InternalError, match="planted"):
            await rig.ends[job]
        assert rig.told == []
        assert rig.speed.tokens_per_second == 0


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 120), max_size=30),
    prompts=st.integers(1, 5),
    tokens=st.sampled_from([0, 50, 100]),
)
def test_everybody_once_in_order_within_the_limits(
    sizes: list[int], prompts: int, tokens: int
) -> None:
    async def run() -> list[list[int]]:
        async with rig_of(tokens=tokens, prompts=prompts) as rig:
            rig.put(*sizes)
            for _ in sizes:
                rig.passes.end_one()
            await until(lambda: sum(map(len, rig.passes.begun)) == len(sizes))
            return rig.passes.begun

    begun = asyncio.run(run())
    assert [size for pack in begun for size in pack] == sizes
    for pack in begun:
        assert len(pack) == 1 or (sum(pack) <= tokens and len(pack) <= prompts)


async def test_a_prompt_is_in_the_next_pass_before_anything_else_is_begun() -> None:
    async with rig_of() as rig:
        (job,) = rig.put(10)
        rig.slow[10] = asyncio.Event()
        await until(lambda: rig.taken == [10])
        turn = Turn(job, batcher=rig.batcher)
        began: list[str] = []

        async def reserve() -> None:
            began.append("reserve" if rig.passes.begun else "reserve too early")

        computed = turn.compute(_PLAN, cast("Any", None))
        beside = asyncio.create_task(reserve())
        waiting = asyncio.create_task(computed)
        await beside
        assert began == ["reserve"]
        rig.passes.end_one()
        assert cast("int", await waiting) == 10
