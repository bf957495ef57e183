"""The last minute, by a clock that tests move."""

import pytest

from gateway.job import GenerationJob, RequestReport, Try
from gateway.live_traffic import RATE_S, WINDOW_S, LiveTraffic
from gateway.observers import Observers
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions
from tests.support.stepped_clock import SteppedClock

SECRET = 424242


@pytest.fixture
def clock():
    return SteppedClock(1000.25)


@pytest.fixture
def traffic(clock):
    return LiveTraffic(clock=clock)


def job(name="r"):
    return GenerationJob(
        request_id=name,
        endpoint="/v1/completions",
        model="m",
        prompt_ids=(SECRET,),
        sampling=SamplingParams(),
        stop=StopConditions(max_tokens=1),
        options=RequestOptions(),
        arrived=0.0,
        deadline=1.0,
    )


def report(**changes):
    fields = {
        "ttft_s": 0.5,
        "phases_s": {"prefill": 0.25, "transfer": 0.125},
        "kv_bytes": 100,
        "transport": "grpc",
        "tries": [Try(prefill="x", decode="d", failed="unavailable"), Try(prefill="p", decode="d")],
    }
    return RequestReport(**{**fields, **changes})


def test_latencies_are_those_of_the_last_minute(traffic, clock):
    traffic.first_token(job(), seconds=9.0)
    clock.now += WINDOW_S + 1
    for seconds in (0.1, 0.2, 0.3):
        traffic.first_token(job(), seconds=seconds)
    ttft = traffic.snapshot()["ttft_ms"]
    assert ttft["count"] == 3
    assert ttft["p50"] == pytest.approx(200)
    assert 280 < ttft["p95"] < 300
    clock.now += WINDOW_S + 1
    assert traffic.snapshot()["ttft_ms"] == {"p50": None, "p95": None, "count": 0}


def test_one_request_is_its_own_median(traffic):
    traffic.first_token(job(), seconds=0.5)
    assert traffic.snapshot()["ttft_ms"] == {"p50": 500, "p95": 500, "count": 1}


def test_the_rate_is_over_the_last_seconds(traffic, clock):
    traffic.more_tokens(job(), gap_s=1.0, count=50)
    clock.now += 1
    traffic.more_tokens(job(), gap_s=1.0, count=25)
    traffic.first_token(job(), seconds=1.0)
    assert traffic.snapshot()["tokens_per_s"] == pytest.approx(76 / RATE_S)
    clock.now += RATE_S + 1
    assert traffic.snapshot()["tokens_per_s"] == 0


def test_the_newest_requests_come_first_and_old_phases_fade(traffic, clock):
    traffic.finished(job("old"), report(phases_s={"prefill": 7.0}), completion_tokens=1)
    clock.now += WINDOW_S + 1
    for index in range(20):
        traffic.finished(job(f"r{index}"), report(), completion_tokens=2)
    snapshot = traffic.snapshot()
    assert [entry["request_id"] for entry in snapshot["recent"]] == [
        f"r{index}" for index in range(19, 7, -1)
    ]
    assert snapshot["requests"] == 20
    assert snapshot["phases_ms"]["prefill"] == {"p50": 250, "p95": 250, "count": 20}


def test_flows_add_up_by_pair(traffic):
    traffic.finished(job(), report(), completion_tokens=1)
    traffic.finished(job(), report(kv_bytes=50, transport="nixl"), completion_tokens=1)
    traffic.finished(job(), report(tries=[Try(prefill="p", decode="e")]), completion_tokens=1)
    traffic.finished(job(), report(kv_bytes=0), completion_tokens=1)
    assert traffic.flows() == [
        {"prefill": "p", "decode": "d", "transport": "nixl", "handoffs": 2, "kv_bytes": 150,
         "transfer_ms": 250},
        {"prefill": "p", "decode": "e", "transport": "grpc", "handoffs": 1, "kv_bytes": 100,
         "transfer_ms": 125},
    ]  # fmt: skip


def test_memory_is_bounded_whatever_passes(traffic):
    for index in range(5000):
        traffic.first_token(job(), seconds=0.1)
        traffic.finished(
            job(), report(tries=[Try(prefill="p", decode=f"d{index}")]), completion_tokens=1
        )
    assert traffic.snapshot()["ttft_ms"]["count"] == 2048
    flows = traffic.flows()
    assert len(flows) == 256
    assert "d4999" in {flow["decode"] for flow in flows}


def test_the_prompt_is_not_in_it(traffic):
    traffic.first_token(job(), seconds=0.1)
    traffic.finished(job(), report(), completion_tokens=1)
    assert str(SECRET) not in repr((traffic.snapshot(), traffic.flows()))


def test_observers_are_all_told():
    told = []

    class Ear:
        def __init__(self, name):
            self._name = name

        def __getattr__(self, method):
            return lambda *args, **fields: told.append((self._name, method, args, fields))

    both = Observers(Ear("a"), Ear("b"))
    both.first_token(job(), seconds=1.0)
    both.more_tokens(job(), gap_s=1.0, count=2)
    both.finished(job(), report(), completion_tokens=3)
    both.retried("why")
    both.disconnected("decode")
    both.answered(endpoint="/", code="200", outcome="ok", seconds=1.0)
    both.rejected("full")
    assert len(told) == 14
    assert [entry[1:] for entry in told[::2]] == [entry[1:] for entry in told[1::2]]
    assert [entry[0] for entry in told] == ["a", "b"] * 7
