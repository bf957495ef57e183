"""Retries are a share of the recent requests, and a few always."""

from gateway.retry_budget import ALWAYS, WINDOW_S, RetryBudget
from tests.support.stepped_clock import SteppedClock


def test_a_share_of_the_recent_requests() -> None:
    clock, denied = SteppedClock(), []
    budget = RetryBudget(0.1, on_denied=lambda: denied.append(1), clock=clock)
    assert sum(budget.take() for _ in range(50)) == ALWAYS
    for _ in range(400):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == 40 - ALWAYS
    assert len(denied) == 40 + 70
    clock.now += WINDOW_S
    assert sum(budget.take() for _ in range(50)) == ALWAYS


def test_memory_is_a_few_seconds_whatever_the_traffic() -> None:
    clock = SteppedClock()
    budget = RetryBudget(0.5, on_denied=lambda: None, clock=clock)
    for _ in range(1_000):
        clock.now += 1
        budget.request()
        budget.take()
    assert len(budget._requests) <= WINDOW_S + 1
    assert len(budget._retries) <= WINDOW_S + 1
