"""When a client calls again."""

import random

import pytest

from gateway.sdk import (
    DeadlineError,
    HandoffError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    RateLimitError,
    Retry,
    TandemError,
    UnavailableError,
    UnreachableError,
)
from gateway.sdk.attempts import Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(*, timeout_s: float | None = None, clock: Clock | None = None, **retry) -> Attempts:
    return Attempts(
        Retry(**retry), timeout_s=timeout_s, jitter=random.Random(1), clock=clock or Clock()
    )


@pytest.mark.parametrize("error", [UnavailableError("x"), UnreachableError("x")])
def test_pauses_grow_and_come_to_an_end(error: TandemError) -> None:
    tried = attempts(attempts=4, pause_s=1.0)
    pauses = [tried.pause_s(error) for _ in range(4)]
    assert pauses[3] is None
    for index, pause in enumerate(pauses[:3]):
        assert pause is not None
        assert 0.5 * 2**index <= pause <= 2**index


def test_no_pause_is_longer_than_the_longest() -> None:
    tried = attempts(attempts=50, pause_s=1.0, longest_s=4.0)
    pauses = [tried.pause_s(UnavailableError("x")) for _ in range(49)]
    assert all(pause is not None and pause <= 4.0 for pause in pauses)


@pytest.mark.parametrize("cls", [OverloadedError, RateLimitError, UnavailableError])
def test_the_gateway_says_how_long(cls: type[TandemError]) -> None:
    assert attempts().pause_s(cls("x", retry_after_s=3.0)) == 3.0
    assert attempts(longest_s=2.0).pause_s(cls("x", retry_after_s=3.0)) is None


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("a message that is too large is no matter of time"),
        RateLimitError("x"),
        InvalidRequestError("x"),
        DeadlineError("x"),
        HandoffError("x"),
        InternalError("x"),
    ],
)
def test_other_failures_are_the_callers(error: TandemError) -> None:
    assert attempts().pause_s(error) is None


def test_one_attempt_never_repeats() -> None:
    assert attempts(attempts=1).pause_s(UnavailableError("x")) is None


def test_all_tries_share_one_deadline() -> None:
    clock = Clock()
    tried = attempts(timeout_s=2.0, pause_s=1.0, clock=clock)
    assert tried.remaining_s() == 2.0
    clock.now += 0.5
    assert tried.remaining_s() == 1.5
    assert tried.pause_s(UnavailableError("x")) is not None
    assert tried.pause_s(UnavailableError("x", retry_after_s=1.5)) is None, "it would be too late"
    clock.now += 9.0
    assert tried.remaining_s() == 0.0
    assert attempts().remaining_s() is None
