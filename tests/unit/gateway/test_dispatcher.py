"""Turns at the workers: bounded, in fair order, never lost; and the rate that is measured."""

import asyncio

import pytest

from gateway.dispatcher import Dispatcher, Turn
from gateway.principal import ANONYMOUS, Principal
from gateway.service_rate import ServiceRate
from tests.support.stepped_clock import SteppedClock

A, B = Principal(key_id="a"), Principal(key_id="b")


class Pool:
    """A dispatcher over a number of workers that tests change."""

    def __init__(self, *, workers: int = 1, worker_tokens: int = 100) -> None:
        self.workers = workers
        self.clock = SteppedClock()
        self.rate = ServiceRate(lambda: self.workers, clock=self.clock)
        self.dispatcher = Dispatcher(
            worker_tokens, workers=lambda: self.workers, rate=self.rate, clock=self.clock
        )

    def ask(
        self, tokens: int, principal: Principal = ANONYMOUS, *, timeout_s: float = 60.0
    ) -> asyncio.Task[Turn]:
        return asyncio.create_task(self.dispatcher.turn(tokens, principal, timeout_s=timeout_s))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_two_long_prompts_a_worker_then_others_wait() -> None:
    pool = Pool(workers=2)
    turns = [pool.ask(1_000) for _ in range(6)]
    await settle()
    assert [turn.done() for turn in turns] == [True] * 4 + [False] * 2
    assert (pool.dispatcher.sent_tokens, pool.dispatcher.waiting) == (4_000, 2)
    turns[0].result().served()
    turns[0].result().served()
    turns[0].result().end()
    await settle()
    assert [turn.done() for turn in turns] == [True] * 5 + [False]
    turns[1].result().end()
    for turn in turns[2:]:
        (await turn).end()
    assert (pool.dispatcher.sent_tokens, pool.dispatcher.sent_prompts) == (0, 0)


async def test_short_prompts_fill_the_tokens_of_a_worker() -> None:
    pool = Pool()
    turns = [pool.ask(10) for _ in range(12)]
    await settle()
    assert sum(turn.done() for turn in turns) == 10
    for turn in turns:
        (await turn).served()


async def test_turns_are_fair_between_keys() -> None:
    pool = Pool()
    greedy = [pool.ask(100, A) for _ in range(6)]
    await settle()
    modest = pool.ask(100, B)
    for turn in greedy[:2]:
        await settle()
        turn.result().served()
    await settle()
    assert modest.done()
    assert not greedy[-1].done()
    for turn in (*greedy[2:], modest):
        (await turn).end()


async def test_who_gives_up_leaves_and_a_granted_place_is_not_lost() -> None:
    pool = Pool()
    holders = [await pool.ask(50), await pool.ask(50)]
    leaving, granted, last = pool.ask(80), pool.ask(70), pool.ask(10)
    await settle()
    leaving.cancel()
    await settle()
    assert pool.dispatcher.waiting == 2
    # Granted and cancelled before the task runs again.
    holders[0].served()
    granted.cancel()
    await asyncio.gather(leaving, granted, return_exceptions=True)
    await settle()
    assert last.done()
    assert pool.dispatcher.sent_tokens == 60
    holders[1].end()
    (await last).end()
    assert (pool.dispatcher.sent_tokens, pool.dispatcher.waiting) == (0, 0)


async def test_a_wait_ends_in_time() -> None:
    pool = Pool()
    holders = [await pool.ask(50), await pool.ask(50)]
    with pytest.raises(TimeoutError):
        await pool.ask(60, timeout_s=0.01)
    assert pool.dispatcher.waiting == 0
    for turn in holders:
        turn.end()


async def test_without_workers_nobody_waits_and_new_workers_take_what_waits() -> None:
    pool = Pool()
    turns = [pool.ask(100) for _ in range(8)]
    await settle()
    assert sum(turn.done() for turn in turns) == 2
    pool.workers = 2
    pool.dispatcher.poke()
    await settle()
    assert sum(turn.done() for turn in turns) == 4
    pool.workers = 0
    pool.dispatcher.poke()
    await settle()
    assert all(turn.done() for turn in turns)


async def test_what_is_ahead() -> None:
    pool = Pool()
    assert pool.dispatcher.ahead(1_000, A) == 0
    holders = [await pool.ask(50, A), await pool.ask(50, A)]
    waiting = pool.ask(40, A)
    await settle()
    assert pool.dispatcher.ahead(10, A) == 100 + 40
    assert pool.dispatcher.ahead(10, B) == 100 + 10
    for turn in holders:
        turn.end()
    (await waiting).end()


def test_rate_is_tokens_over_worker_seconds() -> None:
    clock, workers = SteppedClock(), [4]
    rate = ServiceRate(lambda: workers[0], clock=clock)
    assert rate.tokens_per_second == 0.0
    rate.begin()
    clock.now += 2.0
    rate.end(1_000)
    # One of four workers was busy: the four of them are four times as fast.
    assert rate.tokens_per_second == pytest.approx(2_000, rel=0.05)
    workers[0] = 1
    assert rate.tokens_per_second == pytest.approx(500, rel=0.05)


def test_idle_time_does_not_count_and_prompts_behind_others_do_not_count_twice() -> None:
    clock = SteppedClock()
    rate = ServiceRate(lambda: 1, clock=clock)
    for _ in range(3):
        rate.begin()
        rate.begin()
        clock.now += 1.0
        rate.end(100)
        clock.now += 1.0
        rate.end(100)
        clock.now += 1_000.0
    assert rate.tokens_per_second == pytest.approx(100, rel=0.1)


def test_rate_follows_a_change_of_speed() -> None:
    clock = SteppedClock()
    rate = ServiceRate(lambda: 1, clock=clock)
    for tokens in [100] * 60 + [1_000] * 240:
        rate.begin()
        clock.now += 1.0
        rate.end(tokens)
    assert rate.tokens_per_second == pytest.approx(1_000, rel=0.05)
