"""Segments of steps in closed form against a loop that takes one step after the other."""

from functools import partial
from random import Random

import pytest

from loadtest.plan.clock import Clock
from loadtest.plan.curves import DecodeTimes
from loadtest.plan.decode_worker import DecodeWorker
from loadtest.plan.life import Life
from loadtest.plan.profile import WorkerLimits
from loadtest.plan.work import Work
from tests.support.plan_parts import made_profile, requests_of

PROFILE = made_profile(
    step_s=lambda _policy, batch, context: 0.002 + 0.001 * batch + batch * context * 1e-6
)
LIMITS = WorkerLimits(max_batch=4, pages_front=1_000, pages_rest=1_000, slab_bytes=1 << 20)


def works(sizes: list[tuple[int, int]]) -> list[Work]:
    return [
        Work(
            request=request,
            prefill_s=0.0,
            ready=(1.0,),
            transfer_s=0.0,
            slots=float(request.prompt_tokens),
            pages_front=1,
            pages_rest=1,
            nbytes=1,
        )
        for request in requests_of(sizes)
    ]


def by_segments(sizes: list[tuple[int, int]], moments: list[float]) -> list[tuple[float, float]]:
    clock = Clock()
    lives = [Life(work=w, due=at, first_at=at) for w, at in zip(works(sizes), moments, strict=True)]
    left = len(lives)

    def ended(life: Life) -> None:
        nonlocal left
        left -= 1
        if not left:
            clock.stop()

    worker = DecodeWorker(clock, times=DecodeTimes(PROFILE, "dense"), limits=LIMITS, ended=ended)
    for life in lives:
        assert worker.reserve(life.work)
        worker.landed(life.work)
        clock.after(life.due, partial(worker.join, life))
    clock.run()
    assert worker.idle
    return [(life.last_at or 0.0, life.longest_gap) for life in lives]


def step_by_step(sizes: list[tuple[int, int]], moments: list[float]) -> list[tuple[float, float]]:
    times = DecodeTimes(PROFILE, "dense")
    coming = sorted(range(len(sizes)), key=lambda i: (moments[i], i))
    running: dict[int, int] = {}
    last, gap = list(moments), [0.0] * len(sizes)
    now = 0.0
    while coming or running:
        if not running:
            now = max(now, moments[coming[0]])
        while coming and moments[coming[0]] <= now and len(running) < LIMITS.max_batch:
            running[coming.pop(0)] = 0
        context = sum(sizes[i][0] + 1 + done for i, done in running.items()) / len(running)
        now += times.rows(len(running)).step(context)
        for i in list(running):
            gap[i] = max(gap[i], now - last[i])
            last[i] = now
            running[i] += 1
            if running[i] == sizes[i][1] - 1:
                del running[i]
    return list(zip(last, gap, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_rows_end_and_pause_when_a_loop_of_single_steps_says_so(seed: int):
    random = Random(seed)
    sizes = [(random.randint(1, 2_000), random.randint(2, 80)) for _ in range(40)]
    moments = sorted(random.uniform(0, 3) for _ in sizes)
    found, wanted = by_segments(sizes, moments), step_by_step(sizes, moments)
    # The curve bends at 1,024 tokens; only there the closed form is not exact.
    assert [end for end, _ in found] == pytest.approx([end for end, _ in wanted], abs=1e-3)
    assert [gap for _, gap in found] == pytest.approx([gap for _, gap in wanted], abs=1e-3)
