"""Where the bars of a waterfall lie."""

from itertools import pairwise

import pytest

from gateway.timeline import Timeline

PHASES = {
    "gateway_queue": 0.01,
    "prefill_queue": 0.02,
    "prefill": 0.5,
    "select": 0.05,
    "transfer": 0.03,
    "decode_queue": 0.001,
    "first_decode": 0.02,
    "decode": 1.0,
}


def whole() -> Timeline:
    return Timeline(
        arrived=100.0,
        entered=100.1,
        started=100.2,
        first_token=100.7,
        sealed=100.8,
        decoding=100.79,
        ended=102.0,
    )


def test_bars_lie_where_the_gateway_heard_of_them():
    bars = whole().bars(PHASES)
    places = {bar.phase: (bar.hop, round(bar.start_s, 6), bar.seconds) for bar in bars}
    assert places == {
        "tokenize": ("gateway", 0.0, pytest.approx(0.1)),
        "gateway_queue": ("gateway", 0.1, 0.01),
        "prefill_queue": ("prefill", 0.18, 0.02),
        "prefill": ("prefill", 0.2, 0.5),
        "transfer": ("transfer", 0.77, 0.03),
        "decode_queue": ("decode", 0.79, 0.001),
        "first_decode": ("decode", 0.791, 0.02),
        "stream": ("decode", 0.811, 1.0),
    }
    assert all(a.start_s <= b.start_s for a, b in pairwise(bars))
    assert whole().total_s == pytest.approx(2.0)


def test_what_has_not_happened_has_no_bar():
    running = Timeline(arrived=100.0, entered=100.1)
    assert [bar.phase for bar in running.bars({})] == ["tokenize"]
    assert running.total_s == 0.0
    assert Timeline(arrived=100.0).bars({}) == ()


def test_a_duration_longer_than_the_time_since_the_arrival_does_not_begin_before_it():
    line = Timeline(arrived=100.0, entered=100.0, started=100.1)
    bars = line.bars({"prefill_queue": 5.0})
    assert min(bar.start_s for bar in bars) == 0.0
