"""When a run is hopeless, on runs of a queue whose capacity is known."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.load.exchange import Exchange, Ticket
from loadtest.load.judge import EXIT_CODES, Verdict, verdict
from loadtest.load.overload import Bounds, OverloadWatch, Sight, Stop
from loadtest.load.run_watch import RunWatch
from loadtest.load.schedule import schedule_of
from loadtest.load.settings import LoadSettings
from shared.errors import ConfigError

BOUNDS = Bounds(max_in_flight=1_000, max_lag=0.05, may_miss=10)
BOUND_S = 2.0


def queue_run(
    arrivals: list[float], *, service_s: float, bounds: Bounds = BOUNDS
) -> tuple[Stop | None, int]:
    """One server that takes `service_s` a request, first come first served; a stop and its place.

    A request is late when it has waited longer than `BOUND_S`.
    """
    watch = OverloadWatch(bounds)
    ends: list[float] = []
    for place, at_s in enumerate(arrivals):
        ended = sum(end <= at_s for end in ends)
        started = arrivals[:place]
        late = sum(
            min(end, at_s) - start > BOUND_S for start, end in zip(started, ends, strict=True)
        )
        sight = Sight(at_s=at_s, lag_s=0.0, in_flight=place - ended, ended=ended, missed=late)
        stop = watch.seen(sight)
        if stop is not None:
            return stop, place
        ends.append(max(at_s, ends[-1] if ends else 0.0) + service_s)
    return None, len(arrivals)


@given(rate=st.floats(2, 20), overload=st.floats(1.5, 5))
@settings(max_examples=30, deadline=None)
def test_a_queue_that_grows_without_bound_is_stopped(rate: float, overload: float) -> None:
    arrivals = [place / rate for place in range(round(120 * rate))]
    stop, place = queue_run(arrivals, service_s=overload / rate)
    assert stop is not None
    assert not stop.client
    assert place < len(arrivals)
    assert "have missed their bounds" in stop.reason


@given(rate=st.floats(2, 20), load=st.floats(0.1, 0.95))
@settings(max_examples=30, deadline=None)
def test_a_server_that_keeps_up_is_left_alone(rate: float, load: float) -> None:
    arrivals = [place / rate for place in range(round(60 * rate))]
    assert queue_run(arrivals, service_s=load / rate)[0] is None


def test_a_burst_that_is_worked_off_is_no_overload() -> None:
    burst = [0.01 * place for place in range(29)]
    calm = [3.0 + 0.5 * place for place in range(80)]
    assert queue_run(burst + calm, service_s=0.15)[0] is None


def test_a_slow_but_steady_server_misses_without_being_stopped() -> None:
    """Every request is late and none queues longer than the one before."""
    watch = OverloadWatch(BOUNDS)
    for place in range(200):
        sight = Sight(at_s=place / 5, lag_s=0, in_flight=40, ended=max(0, place - 40), missed=place)
        assert watch.seen(sight) is None


def test_more_requests_under_way_than_allowed_end_the_run() -> None:
    stop, _ = queue_run(
        [place / 100 for place in range(1_000)],
        service_s=1.0,
        bounds=Bounds(max_in_flight=64, max_lag=0.05, may_miss=10_000),
    )
    assert stop is not None
    assert stop.in_flight == 65
    assert "more than 64" in stop.reason


def test_a_generator_that_falls_behind_is_the_client_s_fault() -> None:
    watch = OverloadWatch(BOUNDS)
    sights = [
        Sight(at_s=0.1 * place, lag_s=0.08 * place, in_flight=1, ended=place, missed=0)
        for place in range(200)
    ]
    stops = [stop for sight in sights if (stop := watch.seen(sight)) is not None]
    assert stops[0].client
    assert "cannot keep the schedule" in stops[0].reason
    late_once = OverloadWatch(BOUNDS)
    lags = [3.0, 0.0] * 100
    for place, lag_s in enumerate(lags):
        sight = Sight(at_s=place, lag_s=lag_s, in_flight=1, ended=place, missed=0)
        assert late_once.seen(sight) is None


def test_a_stop_has_a_verdict_and_an_exit_code_of_its_own() -> None:
    server = Stop(at_s=9.0, reason="r", client=False, in_flight=3)
    client = Stop(at_s=9.0, reason="r", client=True, in_flight=3)
    fine = {"wanted": 0.9, "saturated": False, "complete": True}
    assert verdict([1.0], stop=server, **fine) is Verdict.SERVER_SATURATED  # type: ignore[arg-type]
    assert verdict([1.0], stop=client, **fine) is Verdict.CLIENT_SATURATED  # type: ignore[arg-type]
    assert EXIT_CODES[Verdict.SERVER_SATURATED] == 9


def test_a_run_counts_what_is_late_already_though_it_has_not_ended() -> None:
    chosen = LoadSettings(
        host="http://h", out=Path("o"), rate=20, seconds=20, slo=("chat:ttft=1,tpot=1",)
    )
    schedule = schedule_of(chosen)
    watch = RunWatch(chosen, schedule)
    under_way: list[Exchange] = []
    stop, place = None, 0
    for place, (arrival, request) in enumerate(schedule):  # noqa: B007  nobody is ever answered
        now = arrival.due_s
        stop = watch.arrival(arrival.stage, due_s=now, now_s=now, under_way=under_way)
        if stop is not None:
            break
        under_way.append(Exchange(Ticket(request, now), lambda: 0.0, started_s=now))
    assert stop is not None
    assert 30 <= place < len(schedule) // 2
    assert not stop.client


@pytest.mark.parametrize("value", [0, -1])
def test_nothing_under_way_is_no_bound(value: int) -> None:
    with pytest.raises(ConfigError, match="max_in_flight"):
        LoadSettings(host="http://h", out=Path("o"), max_in_flight=value)
