"""Retries are a share of the recent requests, and a few always."""

from gateway.retry_budget import WINDOW_S, RetryBudget
from tests.support.stepped_clock import SteppedClock

ALWAYS = 10


def test_a_share_of_the_recent_requests() -> None:
    clock, denied = SteppedClock(), []
    budget = RetryBudget(0.1, always=ALWAYS, on_denied=lambda: denied.append(1), clock=clock)
    assert sum(budget.take() for _ in range(50)) == ALWAYS
    for _ in range(400):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == 40 - ALWAYS
    assert len(denied) == 40 + 70
    clock.now += WINDOW_S
    assert sum(budget.take() for _ in range(50)) == ALWAYS


def test_a_floor_of_none_leaves_the_share_alone() -> None:
    budget = RetryBudget(0.1, always=0, on_denied=lambda: None, clock=SteppedClock())
    assert not budget.take()
    for _ in range(20):
        budget.request()
    assert sum(budget.take() for _ in range(5)) == 2


def test_memory_is_a_few_seconds_whatever_the_traffic() -> None:
    clock = SteppedClock()
    budget = RetryBudget(0.5, always=ALWAYS, on_denied=lambda: None, clock=clock)
    for _ in range(1_000):
        clock.now += 1
        budget.request()
        budget.take()
    assert len(budget._requests) <= WINDOW_S + 1
    assert len(budget._retries) <= WINDOW_S + 1
