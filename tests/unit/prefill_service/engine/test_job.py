"""A job's events and how it is stopped."""

import asyncio

import pytest

from prefill_service.engine.job import Accepted, Failed, Progress
from shared.errors import CancelledError, DeadlineError, InternalError
from tests.support.prefill_jobs import job_of


async def test_nothing_follows_the_last_event() -> None:
    job = job_of(3)
    job.emit(Accepted(0))
    end = Failed(InternalError("over"))
    job.emit(end)
    job.emit(Progress(1, 3))
    job.emit(Failed(InternalError("again")))
    assert [event async for event in job.events()] == [Accepted(0), end]
    assert job.done
    assert await job.wait_outcome() is end
    assert not job.stop(CancelledError("late"))


async def test_the_first_reason_to_stop_stays() -> None:
    job = job_of(3)
    job.raise_if_stopped()
    first = DeadlineError("too late")
    assert job.stop(first)
    assert not job.stop(CancelledError("second"))
    assert job.stopping()
    with pytest.raises(DeadlineError):
        job.raise_if_stopped()


async def test_work_goes_on_until_it_is_stopped() -> None:
    job = job_of(3)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cleaned")

    waiting = asyncio.create_task(job.unless_stopped(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    job.stop(CancelledError("gone"))
    with pytest.raises(CancelledError):
        await waiting
    assert ended == ["cleaned"]


async def test_a_result_wins_over_a_stop_at_the_same_moment() -> None:
    job = job_of(3)

    async def work() -> int:
        job.stop(CancelledError("gone"))
        return 7

    assert await job.unless_stopped(work()) == 7


async def test_errors_of_the_work_come_through() -> None:
    async def work() -> None:
        raise DeadlineError("slow")

    with pytest.raises(DeadlineError):
        await job_of(3).unless_stopped(work())


async def test_a_cancel_of_the_waiter_ends_the_work() -> None:
    job = job_of(3)
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    waiting = asyncio.create_task(job.unless_stopped(work()))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()
