"""Bounds of the queue, and advice that comes true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import Admission, Ticket, Waiting
from gateway.principal import ANONYMOUS, Principal
from shared.errors import OverloadedError, UnavailableError

OTHER = Principal(key_id="other")


def test_a_number_of_requests_is_a_bound_too() -> None:
    admission = Admission(1_000, max_requests=2)
    tickets = [admission.enter(1), admission.enter(1)]
    with pytest.raises(OverloadedError, match="2 requests") as caught:
        admission.enter(1)
    assert caught.value.error_code == "queue_full"
    tickets[0].leave()
    admission.enter(1)


def test_no_key_is_kept_out_by_another_one() -> None:
    admission = Admission(100, max_requests=3)
    for _ in range(3):
        admission.enter(33)
    with pytest.raises(OverloadedError):
        admission.enter(33)
    admission.enter(50, principal=OTHER)
    with pytest.raises(OverloadedError):
        admission.enter(1, principal=OTHER)


def test_a_full_queue_is_told_before_a_request_is_read() -> None:
    admission = Admission(10, tokens_per_second=lambda: 2.0)
    admission.refuse_if_full(ANONYMOUS)
    ticket = admission.enter(10)
    admission.refuse_if_full(OTHER)
    with pytest.raises(OverloadedError) as caught:
        admission.refuse_if_full(ANONYMOUS)
    assert caught.value.retry_after_s == 5.0
    ticket.leave()
    admission.refuse_if_full(ANONYMOUS)
    admission.draining = True
    with pytest.raises(UnavailableError):
        admission.refuse_if_full(ANONYMOUS)


def test_who_could_not_be_served_in_time_is_refused_at_once() -> None:
    admission = Admission(10_000, max_wait_s=20.0, tokens_per_second=lambda: 100.0)
    admission.enter(10, waiting=Waiting(ahead_tokens=2_000))
    with pytest.raises(OverloadedError) as caught:
        admission.enter(10, waiting=Waiting(ahead_tokens=2_500))
    assert caught.value.retry_after_s == pytest.approx(5.0)
    with pytest.raises(OverloadedError) as late:
        admission.enter(10, waiting=Waiting(ahead_tokens=1_000, remaining_s=7.0))
    assert late.value.retry_after_s == pytest.approx(3.0)
    assert admission.queued_tokens == 10


def test_a_prompt_that_nobody_is_ahead_of_is_always_tried() -> None:
    admission = Admission(10_000, tokens_per_second=lambda: 0.001)
    admission.enter(9_000, waiting=Waiting(ahead_tokens=0, remaining_s=0.5))
    unknown = Admission(10_000, max_wait_s=1.0)
    unknown.enter(10, waiting=Waiting(ahead_tokens=10_000))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    asked=st.integers(1, 400),
    speed=st.floats(60, 400),
)
def test_the_advice_comes_true(sizes: list[int], asked: int, speed: float) -> None:
    """After the advised time at the measured speed, prompts leaving in order, there is room."""
    admission = Admission(1_000, tokens_per_second=lambda: speed)
    tickets: list[Ticket] = []
    for size in sizes:
        try:
            tickets.append(admission.enter(size))
        except OverloadedError:
            break
    try:
        admission.enter(asked)
    except OverloadedError as error:
        wait = error.retry_after_s
        assert wait is not None
        if wait >= 30.0:
            return
        served = wait * speed + 1e-6
        for ticket in tickets:
            if ticket.tokens > served:
                break
            served -= ticket.tokens
            ticket.leave()
        admission.enter(asked)
