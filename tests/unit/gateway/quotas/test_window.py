"""The sliding minute: never more than the limit in any minute, and true waits."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.principal import KeyLimits, Principal
from gateway.quotas.base import NOTHING, Cost, Limits
from gateway.quotas.local import LocalQuotas
from gateway.quotas.quotas import Quotas
from gateway.quotas.report import duration_text, open_report
from gateway.quotas.window import WINDOW_S, standing
from shared.errors import RateLimitError
from tests.support.stepped_clock import SteppedClock

UNLIMITED = Limits(requests=None, tokens=None)


def test_standing_counts_one_minute() -> None:
    buckets = {100: 3, 130: 4, 39: 9}
    now = standing(buckets, now_s=130.5, limit=10, asked=3)
    assert (now.used, now.remaining, now.wait_s) == (7, 3, 0.0)
    assert now.reset_s == pytest.approx(130 + WINDOW_S + 1 - 130.5)
    full = standing(buckets, now_s=130.5, limit=10, asked=4)
    assert full.wait_s == pytest.approx(100 + WINDOW_S + 1 - 130.5)
    assert math.isinf(standing(buckets, now_s=130.5, limit=10, asked=11).wait_s)
    assert standing({}, now_s=1.0, limit=0, asked=0).reset_s == 0.0


def test_more_may_be_given_back_than_is_counted() -> None:
    assert standing({100: 5, 101: -9}, now_s=101.0, limit=3, asked=3).used == 0


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30)), min_size=1, max_size=80),
    limit=st.integers(1, 60),
)
async def test_no_minute_holds_more_than_the_limit(
    steps: list[tuple[float, int]], limit: int
) -> None:
    clock = SteppedClock()
    store = LocalQuotas(clock=clock)
    limits = Limits(requests=None, tokens=limit)
    taken: list[tuple[float, int]] = []
    for pause, tokens in steps:
        clock.now += pause
        verdict = await store.take("k", limits=limits, cost=Cost(requests=1, tokens=tokens))
        if verdict.wait_s == 0:
            taken.append((clock.now, tokens))
        elif tokens <= limit:
            # The advice is the first moment at which it fits.
            begin = clock.now
            clock.now = begin + verdict.wait_s - 0.01
            early = await store.take("k", limits=limits, cost=Cost(requests=1, tokens=tokens))
            assert early.wait_s > 0
            clock.now = begin + verdict.wait_s
            again = await store.take("k", limits=limits, cost=Cost(requests=1, tokens=tokens))
            assert again.wait_s == 0
            taken.append((clock.now, tokens))
    for moment, _ in taken:
        assert sum(n for at, n in taken if moment - WINDOW_S < at <= moment) <= limit


async def test_all_limits_must_fit_and_nothing_is_counted_of_what_is_refused() -> None:
    store = LocalQuotas(clock=SteppedClock())
    limits = Limits(requests=5, tokens=100)
    await store.take("k", limits=limits, cost=Cost(requests=1, tokens=90))
    refused = await store.take("k", limits=limits, cost=Cost(requests=1, tokens=20))
    assert refused.wait_s > 0
    now = await store.take("k", limits=limits, cost=NOTHING)
    assert now.requests is not None
    assert now.tokens is not None
    assert (now.requests.used, now.tokens.used) == (1, 90)


async def test_quiet_keys_are_forgotten() -> None:
    clock = SteppedClock()
    store = LocalQuotas(clock=clock)
    for index in range(1_000):
        clock.now += 1
        await store.take(
            f"k{index}", limits=Limits(requests=1, tokens=1), cost=Cost(requests=1, tokens=1)
        )
    assert len(store._counters) <= 300


def quotas_of(**defaults: int | None) -> Quotas:
    limits = Limits(requests=defaults.get("requests"), tokens=defaults.get("tokens"))
    return Quotas(LocalQuotas(clock=SteppedClock()), defaults=limits)


async def test_own_limits_go_before_the_default_ones() -> None:
    quotas = quotas_of(requests=1)
    own = Principal(key_id="own", limits=KeyLimits(requests_per_minute=2))
    plain = Principal(key_id="plain")
    await quotas.charge(plain, tokens=5)
    with pytest.raises(RateLimitError) as caught:
        await quotas.charge(plain, tokens=5)
    assert caught.value.error_code == "rate_limit_exceeded"
    assert caught.value.retry_after_s == pytest.approx(WINDOW_S + 1)
    await quotas.charge(own, tokens=5)
    await quotas.charge(own, tokens=5)


async def test_answer_tokens_count_and_may_pass_the_limit() -> None:
    quotas = quotas_of(tokens=100)
    who = Principal(key_id="k")
    await quotas.charge(who, tokens=60)
    await quotas.spent(who, tokens=70)
    with pytest.raises(RateLimitError, match="130 of its 100 tokens"):
        await quotas.charge(who, tokens=1)
    await quotas.spent(who, tokens=-60)
    await quotas.charge(who, tokens=30)


async def test_a_prompt_above_the_limit_is_not_to_be_tried_again() -> None:
    with pytest.raises(RateLimitError, match="alone needs more tokens") as caught:
        await quotas_of(tokens=100).charge(Principal(key_id="k"), tokens=101)
    assert caught.value.retry_after_s is None


async def test_parts_of_one_api_request_count_once_and_its_headers_tell_the_last_standing() -> None:
    quotas = quotas_of(requests=3, tokens=100)
    report = open_report()
    for _ in range(5):
        await quotas.charge(Principal(key_id="k"), tokens=10)
    assert report.headers() == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "1m1s",
    }
    assert open_report().headers() == {}


async def test_no_limits_no_headers_and_no_store() -> None:
    report = open_report()
    quotas = quotas_of()
    await quotas.charge(Principal(key_id="k"), tokens=10)
    await quotas.spent(Principal(key_id="k"), tokens=10)
    assert report.headers() == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0201, "21ms"), (1.0, "1s"), (6.2, "7s"), (60, "1m0s"), (361.0, "6m1s")],
)
def test_durations_read_as_official_clients_know_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
