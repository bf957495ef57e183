"""The decode loop with a runner that only counts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from decode_service.engine.engine import DecodeEngine, StepReport
from decode_service.engine.scheduler import Scheduler
from shared.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    UnavailableError,
)
from shared.types.sampling import FinishReason
from tests.support.engine_rows import CountingRunner, make_row, read_all
from tests.support.waiting import until


class Rig:
    """An engine, its runner and what it reported."""

    def __init__(self, max_batch: int = 4) -> None:
        self.runner = CountingRunner()
        self.reports: list[StepReport] = []
        self.engine = DecodeEngine(
            self.runner,
            Scheduler(max_batch=max_batch),
            clock=time.monotonic,
            on_step=self.reports.append,
        )


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    made.engine.start()
    yield made
    made.runner.hold.set()
    await made.engine.stop()
    assert made.engine.num_running == made.engine.num_waiting == 0
    assert not [t for t in threading.enumerate() if t.name == "decode-engine"]


async def test_one_row_runs_to_its_limit(rig: Rig) -> None:
    row, collector = make_row(max_tokens=4)
    rig.engine.join(row)
    ids, ending = await read_all(row.stream)
    assert ids == [100, 101, 102]
    assert (ending.reason, ending.generated_tokens) == (FinishReason.LENGTH, 3)
    assert (ending.attended, ending.dense) == (30, 60)
    assert [name for name, _ in ending.phases] == ["decode_queue", "first_decode", "decode"]
    assert collector.endings == [ending]
    await until(lambda: len(rig.reports) == 3)
    await until(lambda: rig.engine.stalled_seconds == 0.0)


async def test_rows_join_and_leave_at_any_step(rig: Rig) -> None:
    rig.runner.pause_s = 0.01
    long, _ = make_row(name="long", max_tokens=30)
    rig.engine.join(long)
    await long.stream.next()
    short, _ = make_row(name="short", max_tokens=4)
    rig.engine.join(short)
    assert (await read_all(short.stream))[0] == [100, 101, 102]
    ids, _ = await read_all(long.stream)
    assert ids[-1] == 128
    sizes = [len(batch) for batch in rig.runner.batches]
    assert sizes[0] == sizes[-1] == 1
    assert sizes.count(2) == 3


async def test_more_rows_than_the_batch_wait_in_order() -> None:
    rig = Rig(max_batch=2)
    rows = [make_row(name=f"r{i}", max_tokens=4)[0] for i in range(5)]
    for row in rows:
        rig.engine.join(row)
    rig.engine.start()
    results = await asyncio.gather(*(read_all(row.stream) for row in rows))
    assert all(ids == [100, 101, 102] for ids, _ in results)
    assert max(len(batch) for batch in rig.runner.batches) == 2
    assert rig.runner.batches[0] == ["r0", "r1"]
    await rig.engine.stop()


async def test_cancel_takes_effect_before_the_next_step(rig: Rig) -> None:
    row, collector = make_row(name="gone", max_tokens=10_000)
    rig.runner.pause_s = 0.005
    rig.engine.join(row)
    await row.stream.next()
    steps = len(rig.runner.batches)
    rig.engine.cancel(row)
    await until(lambda: bool(collector.endings))
    assert collector.endings[0].reason is FinishReason.CANCELLED
    assert len(rig.runner.batches) - steps <= 1
    rig.engine.cancel(row)
    await asyncio.sleep(0.02)
    assert len(collector.endings) == 1


async def test_slow_reader_rests_and_blocks_nobody(rig: Rig) -> None:
    slow, _ = make_row(name="slow", max_tokens=50, limit=5, on_room=rig.engine.poke)
    quick, _ = make_row(name="quick", max_tokens=200)
    rig.engine.join(slow)
    rig.engine.join(quick)
    ids, _ = await read_all(quick.stream)
    assert len(ids) == 199
    assert sum("slow" in batch for batch in rig.runner.batches) == 5
    await until(lambda: rig.engine.stalled_seconds == 0.0)  # resting is not stalling
    assert (await read_all(slow.stream))[0] == list(range(100, 149))


async def test_deadline_ends_a_running_and_a_resting_row(rig: Rig) -> None:
    rig.runner.pause_s = 0.01
    soon = time.monotonic() + 0.1
    running, first = make_row(max_tokens=100_000, deadline=soon)
    resting, second = make_row(max_tokens=100_000, limit=1, deadline=soon)
    rig.engine.join(running)
    rig.engine.join(resting)
    await until(lambda: bool(first.endings and second.endings))
    for ending in (first.endings[0], second.endings[0]):
        assert ending.reason is FinishReason.ERROR
        assert isinstance(ending.error, DeadlineError)


async def test_a_bad_row_ends_alone(rig: Rig) -> None:
    rig.runner.broken = {"bad"}
    bad, broken = make_row(name="bad", max_tokens=8)
    good, _ = make_row(name="good", max_tokens=8)
    rig.runner.hold.clear()
    rig.engine.join(bad)
    rig.engine.join(good)
    rig.runner.hold.set()
    ids, ending = await read_all(good.stream)
    assert ids == list(range(100, 107))
    assert ending.reason is FinishReason.LENGTH
    await until(lambda: bool(broken.endings))
    assert broken.endings[0].reason is FinishReason.ERROR
    assert isinstance(broken.endings[0].error, InternalError)
    assert rig.engine.healthy


async def test_repeated_failures_turn_the_health_bad_and_success_heals(rig: Rig) -> None:
    rig.runner.broken = {f"bad{i}" for i in range(3)}
    for i in range(3):
        row, collector = make_row(name=f"bad{i}")
        rig.engine.join(row)
        await until(partial(bool, collector.endings))
    assert not rig.engine.healthy
    good, _ = make_row(name="good")
    rig.engine.join(good)
    await read_all(good.stream)
    assert rig.engine.healthy


async def test_requests_that_fail_by_their_own_doing_say_nothing_of_the_engine(rig: Rig) -> None:
    rig.runner.broken = {f"bad{i}" for i in range(4)}
    rig.runner.failure = InvalidRequestError("the grammar is too complex")
    for i in range(4):
        row, collector = make_row(name=f"bad{i}")
        rig.engine.join(row)
        await until(partial(bool, collector.endings))
        assert collector.endings[0].error is rig.runner.failure
    assert rig.engine.healthy


async def test_stalled_seconds_grow_while_a_step_hangs(rig: Rig) -> None:
    rig.runner.hold.clear()
    row, _ = make_row(max_tokens=3)
    rig.engine.join(row)
    await asyncio.sleep(0.05)
    first = rig.engine.stalled_seconds
    await asyncio.sleep(0.05)
    assert rig.engine.stalled_seconds > first > 0.0
    rig.runner.hold.set()
    await read_all(row.stream)
    await until(lambda: rig.engine.stalled_seconds == 0.0)


async def test_work_between_steps_runs_on_the_engine_thread(rig: Rig) -> None:
    name = await rig.engine.between_steps(lambda: threading.current_thread().name)
    assert name == "decode-engine"

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await rig.engine.between_steps(fail)
    assert rig.engine.healthy


async def test_stop_ends_rows_and_refuses_more() -> None:
    rig = Rig()
    rig.engine.start()
    row, collector = make_row(max_tokens=1_000_000)
    rig.engine.join(row)
    await row.stream.next()
    await rig.engine.stop()
    await rig.engine.stop()
    assert isinstance(collector.endings[0].error, UnavailableError)
    rig.engine.cancel(row)
    with pytest.raises(UnavailableError):
        rig.engine.join(make_row()[0])
    with pytest.raises(UnavailableError):
        await rig.engine.between_steps(lambda: None)


async def test_a_defect_outside_a_step_ends_all_rows_and_is_said() -> None:
    rig = Rig()
    rig.engine.start()
    row, collector = make_row(max_tokens=1_000_000)
    twice, _ = make_row()
    rig.engine.join(row)
    rig.engine.join(twice)
    rig.engine.join(twice)
    await until(lambda: rig.engine.crashed)
    await until(lambda: bool(collector.endings))
    assert not rig.engine.healthy
    await rig.engine.stop()
