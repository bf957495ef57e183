"""Recorded runs are replayed as they were offered, and compared figure by figure."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.load.outcome import Outcome
from loadtest.plan.arms import arm_named
from loadtest.plan.validate import read_run, validate, worst_error
from shared.errors import ConfigError
from tests.support.plan_runs import PROFILE, SPLIT, record, write


def test_a_run_of_the_simulation_itself_is_predicted_exactly(tmp_path: Path):
    outcomes = record(tmp_path)
    run = read_run(tmp_path)
    assert run.outcomes == outcomes
    arm = arm_named(PROFILE, "both")
    found = validate(run, PROFILE, split=SPLIT, arm=arm, balancer="least_loaded")
    assert found["requests"] == len(outcomes) > 80
    for name, row in found["figures"].items():
        assert row["predicted"] == pytest.approx(row["measured"]), name
    assert worst_error(found) == pytest.approx(0.0)


def test_a_slower_server_than_the_profile_shows_as_an_error(tmp_path: Path):
    outcomes = record(tmp_path)
    settings = read_run(tmp_path).settings
    slower = [
        replace(o, ttft_s=2 * o.ttft_s, e2e_s=o.e2e_s + o.ttft_s)
        for o in outcomes
        if o.ttft_s is not None and o.e2e_s is not None
    ]
    write(replace(settings, out=tmp_path), slower)
    arm = arm_named(PROFILE, "both")
    found = validate(read_run(tmp_path), PROFILE, split=SPLIT, arm=arm, balancer="least_loaded")
    assert found["figures"]["ttft_p95_s"]["relative_error"] == pytest.approx(-0.5)
    worst = worst_error(found)
    assert worst is not None
    assert worst >= 0.5


def test_the_servers_count_of_prompt_tokens_is_replayed_and_failures_as_planned(tmp_path: Path):
    outcomes = record(tmp_path)
    settings = read_run(tmp_path).settings
    changed = [replace(o, prompt_tokens=o.prompt_tokens + 40) for o in outcomes[:-1]]
    failed = Outcome(
        index=outcomes[-1].index,
        kind=outcomes[-1].kind,
        stage=0,
        due_s=outcomes[-1].due_s,
        started_s=outcomes[-1].started_s,
        failure="http_429",
    )
    write(replace(settings, out=tmp_path), [*changed, failed])
    run = read_run(tmp_path)
    assert [r.prompt_tokens for r in run.requests[:-1]] == [o.prompt_tokens for o in changed]
    assert run.requests[-1].prompt_tokens == outcomes[-1].prompt_tokens


def test_nothing_measured_is_no_error_of_zero(tmp_path: Path):
    outcomes = record(tmp_path)
    settings = read_run(tmp_path).settings
    failed = [replace(o, ttft_s=None, e2e_s=None, failure="connect") for o in outcomes]
    write(replace(settings, out=tmp_path), failed)
    arm = arm_named(PROFILE, "both")
    found = validate(read_run(tmp_path), PROFILE, split=SPLIT, arm=arm, balancer="least_loaded")
    assert found["figures"]["ttft_p95_s"]["measured"] is None
    assert worst_error(found) is None


def test_runs_that_cannot_be_replayed_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is no result of a load run"):
        read_run(tmp_path)
    outcomes = record(tmp_path)
    settings = read_run(tmp_path).settings
    write(replace(settings, out=tmp_path), outcomes, complete=False)
    with pytest.raises(ConfigError, match="no complete open loop"):
        read_run(tmp_path)
    record(tmp_path)
    (tmp_path / "requests.jsonl").write_text(json.dumps({"index": 0}) + "\n")
    with pytest.raises(ConfigError, match=r"requests\.jsonl cannot be read"):
        read_run(tmp_path)


@pytest.mark.parametrize("change", ["drop", "add"])
def test_a_run_of_another_version_is_refused(tmp_path: Path, change: str):
    record(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    if change == "drop":
        del summary["settings"]["trace"]
    else:
        summary["settings"]["surprise"] = 1
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="another version has recorded the run"):
        read_run(tmp_path)


def test_a_closed_loop_cannot_be_replayed(tmp_path: Path):
    outcomes = record(tmp_path)
    settings = read_run(tmp_path).settings
    write(replace(settings, out=tmp_path, closed_users=3, rate=1.0), outcomes)
    with pytest.raises(ConfigError, match="no complete open loop"):
        read_run(tmp_path)
