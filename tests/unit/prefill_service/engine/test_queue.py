"""The token-counted queue and the speed that its advice comes from."""

import asyncio

import pytest

from prefill_service.engine.job import PrefillJob
from prefill_service.engine.queue import FALLBACK_RETRY_S, MAX_RETRY_S, SpeedMeter, TokenQueue
from shared.errors import OverloadedError
from tests.support.prefill_jobs import job_of, request_of


def queue_of(max_tokens: int, *, tokens_per_second: float = 0.0) -> TokenQueue:
    speed = SpeedMeter()
    if tokens_per_second:
        speed.record(int(tokens_per_second), 1.0)
    return TokenQueue(max_tokens, speed=speed)


async def test_first_come_first_served() -> None:
    queue = queue_of(100)
    jobs = [job_of(10), job_of(20), job_of(30)]
    assert [queue.put(job) for job in jobs] == [0, 10, 30]
    assert (len(queue), queue.queued_tokens) == (3, 60)
    assert [await queue.get() for _ in jobs] == jobs
    assert (len(queue), queue.queued_tokens) == (0, 0)


async def test_the_bound_counts_tokens_and_advises_by_speed() -> None:
    queue = queue_of(100, tokens_per_second=50)
    queue.put(job_of(80))
    with pytest.raises(OverloadedError) as caught:
        queue.put(job_of(45))
    assert caught.value.error_code == "queue_full"
    assert caught.value.retry_after_s == pytest.approx(25 / 50)
    assert queue.queued_tokens == 80
    queue.put(job_of(20))


async def test_a_prompt_above_the_bound_enters_an_empty_queue() -> None:
    queue = queue_of(100)
    queue.put(job_of(500))
    with pytest.raises(OverloadedError) as caught:
        queue.put(job_of(1))
    assert caught.value.retry_after_s == FALLBACK_RETRY_S


async def test_taking_out_of_turn() -> None:
    queue = queue_of(100)
    first, second = job_of(10), job_of(20)
    queue.put(first)
    queue.put(second)
    assert queue.remove(first.key) is first
    assert queue.remove(first.key) is None
    assert queue.queued_tokens == 20
    assert await queue.get() is second


async def test_get_waits_for_work() -> None:
    queue = queue_of(100)
    waiting: asyncio.Task[PrefillJob] = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    job = job_of(5)
    queue.put(job)
    assert await waiting is job


def test_speed_is_an_average_that_forgets() -> None:
    speed = SpeedMeter(weight=0.5)
    assert speed.seconds_for(1000) == FALLBACK_RETRY_S
    speed.record(100, 1.0)
    assert speed.tokens_per_second == 100
    speed.record(300, 1.0)
    assert speed.tokens_per_second == 200
    speed.record(10, 0.0)
    assert speed.tokens_per_second == 200
    assert speed.seconds_for(400) == 2.0
    assert speed.seconds_for(1) == 0.1
    assert speed.seconds_for(10**9) == MAX_RETRY_S


def test_short_passes_say_little_about_speed() -> None:
    speed = SpeedMeter(weight=0.5)
    speed.record(1, 0.04)
    assert speed.tokens_per_second == 0, "or a crowd behind it would be refused"
    speed.record(4000, 0.1)
    speed.record(40, 0.01)
    assert speed.tokens_per_second == pytest.approx(4040 / 0.11)


async def test_a_prompt_that_would_start_after_its_deadline_is_refused_at_once() -> None:
    queue = queue_of(1_000, tokens_per_second=50)
    queue.put(job_of(200, deadline_s=0.1))
    with pytest.raises(OverloadedError) as caught:
        queue.put(job_of(10, deadline_s=3.0))
    assert caught.value.retry_after_s == pytest.approx(200 / 50 - 3)
    assert queue.queued_tokens == 200
    queue.put(job_of(10, deadline_s=5.0))
    queue.put(job_of(10))


async def test_deadlines_refuse_nobody_while_no_speed_is_known() -> None:
    queue = queue_of(1_000)
    queue.put(job_of(900))
    queue.put(job_of(10, deadline_s=0.001))


def test_the_earlier_of_two_deadlines_counts() -> None:
    assert request_of(1).within(None).deadline_s is None
    assert request_of(1).within(2.0).deadline_s == 2.0
    assert request_of(1, deadline_s=1.0).within(2.0).deadline_s == 1.0
    assert request_of(1, deadline_s=3.0).within(2.0).deadline_s == 2.0
    assert request_of(1, deadline_s=3.0).within(-1.0).deadline_s == 0.0
