"""The memory of the last requests: bounds, states and privacy."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.debug.request_log import LogLimits, RequestLog
from gateway.job import RequestReport, Try
from shared.errors import HandoffError
from shared.types.trace import LayoutTrace, PromptTrace
from tests.support.gateway_jobs import job_of


def log_of(requests: int = 4, nbytes: int = 1 << 20, **more: Any) -> RequestLog:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    return RequestLog(LogLimits(requests=requests, nbytes=nbytes), now=lambda: now, **more)


def run(log: RequestLog, name: str, report: RequestReport | None = None) -> None:
    with log.record(job_of(name), handoff_id=f"{name}-h", report=report or RequestReport()):
        pass


def names(log: RequestLog) -> list[str]:
    return [each["request_id"] for each in json.loads(log.listing())["requests"]]


def found(log: RequestLog, name: str) -> Any:
    text = log.find(name)
    return None if text is None else json.loads(text)


def test_the_newest_comes_first_and_the_oldest_goes():
    log = log_of(requests=2)
    for name in ("a", "b", "c"):
        run(log, name)
    assert names(log) == ["c", "b"]
    assert found(log, "a") is None
    assert found(log, "b")["started_at"] == "2026-01-02T00:00:00.000+00:00"


def test_bytes_are_bounded_and_counted():
    log = log_of(requests=1000, nbytes=4000)
    for number in range(50):
        run(log, f"r{number}")
    told = json.loads(log.listing())
    assert 0 < told["bytes"] <= 4000
    assert 0 < len(told["requests"]) < 50


def test_one_that_is_larger_than_all_the_room_is_not_kept():
    log = log_of(nbytes=4000)
    run(log, "small")
    layout = LayoutTrace(layers=(0,), kept_tokens=1, share=(0.5,) * 5000, spans=None)
    huge = PromptTrace(prompt_tokens=9, column_tokens=1, score=None, layouts=(layout,))
    run(log, "huge", RequestReport(prompt_trace=huge))
    assert names(log) == ["small"]


def test_none_are_kept_when_none_are_wanted():
    log = log_of(requests=0)
    run(log, "a")
    assert names(log) == []


def test_running_ones_are_listed_and_found():
    log, report = log_of(), RequestReport(tries=[Try(prefill="p", decode="d")])
    run(log, "before")
    with log.record(job_of("now"), handoff_id="now-h", report=report):
        assert names(log) == ["now", "before"]
        assert found(log, "now")["state"] == "running"
        assert found(log, "now-h")["tries"][0]["prefill"] == "p"
    assert found(log, "now")["state"] == "ok"


def test_errors_are_told_with_their_code():
    log = log_of()
    with (
        pytest.raises(HandoffError),
        log.record(job_of("bad"), handoff_id="bad-h", report=RequestReport()),
    ):
        raise HandoffError("the KV is lost; retry")
    entry = found(log, "bad")
    assert (entry["state"], entry["code"]) == ("error", "kv_transfer_failed")
    assert entry["error"]["message"] == "the KV is lost; retry"


def test_what_nobody_foresaw_is_an_error_without_its_text():
    log = log_of()
    with (
        pytest.raises(RuntimeError),
        log.record(job_of("bad"), handoff_id="h", report=RequestReport()),
    ):
        raise RuntimeError("secret internals")
    assert "secret internals" not in json.dumps(found(log, "bad"))
    assert found(log, "bad")["state"] == "error"


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_clients_that_leave_are_cancelled(kind: type[BaseException]):
    log = log_of()
    with pytest.raises(kind), log.record(job_of("gone"), handoff_id="h", report=RequestReport()):
        raise kind
    assert found(log, "gone")["state"] == "cancelled"


def test_of_two_with_one_id_the_newest_is_found_and_both_by_their_handoffs():
    log = log_of()
    for number in (1, 2):
        job = job_of("same", tokens=number)
        with log.record(job, handoff_id=f"h{number}", report=RequestReport()):
            pass
    assert found(log, "same")["prompt_tokens"] == 2
    assert found(log, "h1")["prompt_tokens"] == 1


def test_prompts_are_kept_only_when_the_operator_wants_them():
    log = log_of(prompt_text=lambda ids: f"{len(ids)} words")
    run(log, "a")
    assert found(log, "a")["prompt"] == "3 words"
    silent = log_of()
    run(silent, "a")
    assert found(silent, "a")["prompt"] is None


@given(
    st.integers(0, 5),
    st.integers(1, 6000),
    st.lists(st.integers(0, 8), max_size=30),
)
def test_bounds_hold_for_any_order(requests: int, nbytes: int, order: list[int]):
    log = log_of(requests=requests, nbytes=nbytes)
    for number, name in enumerate(order):
        with log.record(
            job_of(f"r{name}"), handoff_id=f"h{number}", report=RequestReport(route="x" * name)
        ):
            pass
        told = json.loads(log.listing())
        assert len(told["requests"]) <= requests
        assert told["bytes"] <= nbytes
