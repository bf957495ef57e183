"""A run second by second: a recorded one in which a worker died, and what its report says."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.load.outcome import Outcome
from loadtest.load.record import Record
from loadtest.load.results import read_summary, write_results
from loadtest.load.settings import LoadSettings
from loadtest.load.timeline import disturbance_of, timeline_of
from loadtest.load.workloads import Profile, classes_of

KINDS = classes_of(Profile.CPU)
MACHINE = {
    "command": "locust",
    "commit": "c" * 40,
    "uncommitted_changes": False,
    "hardware": {"cpu": "one", "cores": 2},
}
SERVER = {"model": "m", "version": "1", "fingerprint": "f" * 64, "properties": {}}


def one(at_s: float, **fields: Any) -> Outcome:
    """A request of half a second, served in time."""
    given = {"index": 0, "kind": "chat", "stage": 0, "due_s": at_s, "started_s": at_s}
    times = {"ended_s": at_s + 0.5, "e2e_s": 0.5, "ttft_s": 0.1, "tpot_s": 0.01}
    return Outcome(**{**given, **times, **fields})


def lost(at_s: float, failure: str, *, after_s: float) -> Outcome:
    times = dict.fromkeys(("e2e_s", "ttft_s", "tpot_s"))
    return one(at_s, failure=failure, ended_s=at_s + after_s, **times)


def recorded() -> list[Outcome]:
    """Four requests a second for twenty seconds; a worker dies at 8 and is gone until 11."""
    moments = [second + quarter / 4 for second in range(20) for quarter in range(4)]
    served = [one(at) for at in moments if not 7.5 <= at < 11]
    broken = [lost(at, "error_frame", after_s=8.2 - at) for at in (7.5, 7.75, 8.0)]
    refused = [lost(at, "http_503", after_s=0.1) for at in moments if 8 < at < 11]
    return served + broken + refused


def test_a_dip_and_its_recovery_are_seen() -> None:
    rows = timeline_of(recorded(), KINDS)
    assert [row["second"] for row in rows] == list(range(21))
    assert [row["offered"] for row in rows[:20]] == [4] * 20
    assert [row["met"] for row in rows[8:12]] == [0, 0, 0, 2]
    assert rows[8]["failures"] == {"error_frame": 3, "http_503": 3}
    found = disturbance_of(rows)
    assert found is not None
    assert (found["first_failure_s"], found["last_failure_s"]) == (8, 10)
    assert found["failures"] == {"error_frame": 3, "http_503": 11}
    assert found["before_per_s"] == pytest.approx(30 / 8)
    assert (found["lowest_per_s"], found["lowest_at_s"]) == (0.0, 8)
    assert found["recovered_at_s"] == 11  # 2, 4 and 4 of the seconds from 11 on: above 3


def test_a_run_that_never_recovers_says_so_and_one_without_failures_says_nothing() -> None:
    outcomes = [one(float(second)) for second in range(5)]
    assert disturbance_of(timeline_of(outcomes, KINDS)) is None
    down = [lost(float(second), "connect", after_s=0.1) for second in range(5, 20)]
    found = disturbance_of(timeline_of(outcomes + down, KINDS))
    assert found is not None
    assert (found["lowest_per_s"], found["recovered_at_s"]) == (0.0, None)
    always = disturbance_of(timeline_of(down[:1], KINDS))
    assert always is not None
    assert always["before_per_s"] is not None
    assert timeline_of([], KINDS) == []


def test_failures_from_the_first_second_on_have_no_before() -> None:
    found = disturbance_of(timeline_of([lost(0.0, "connect", after_s=0.1)], KINDS))
    assert found is not None
    assert (found["before_per_s"], found["lowest_per_s"], found["recovered_at_s"]) == (None,) * 3


@given(
    st.lists(
        st.builds(
            lambda at, took, kind: {"late": one(at, ttft_s=99.0, ended_s=at + took),
                                    "failed": lost(at, "timeout", after_s=took),
                                    "left": replace(one(at, ended_s=at + took), left=True),
                                    "met": one(at, ended_s=at + took)}[kind],
            st.floats(0, 30), st.floats(0, 30), st.sampled_from(["late", "failed", "left", "met"]),
        )
    )
)  # fmt: skip
def test_every_request_is_counted_once(outcomes: list[Outcome]) -> None:
    rows = timeline_of(outcomes, KINDS)
    total = {name: sum(row[name] for row in rows) for name in ("offered", "met", "late", "failed")}
    left = sum(outcome.left for outcome in outcomes)
    assert total["offered"] == len(outcomes)
    assert total["met"] + total["late"] + total["failed"] == len(outcomes) - left
    assert total["failed"] == sum((Counter(r["failures"]) for r in rows), Counter()).total()


def test_a_report_shows_the_dip(tmp_path: Path) -> None:
    settings = LoadSettings(host="http://h", out=tmp_path, rate=4, seconds=20)
    record = Record(planned=80, outcomes=recorded(), complete=True)
    assert write_results(record, settings, server=SERVER, machine=MACHINE) == 1
    found = read_summary(tmp_path)
    assert found["disturbance"]["recovered_at_s"] == 11
    assert found["failures"] == {"error_frame": 3, "http_503": 11}
    page = (tmp_path / "report.html").read_text()
    assert "Failures from second 8 to 10" in page
    assert "recovered from second 11 on" in page
    assert (tmp_path / "seconds.png").read_bytes().startswith(b"\x89PNG")
