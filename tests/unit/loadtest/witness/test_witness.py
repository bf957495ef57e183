"""The witness's arithmetic and files: verdicts, what is refused, settings, reports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.load.prompts import WORDS, PromptMaker, Word
from loadtest.load.schedule import schedule_of
from loadtest.witness.__main__ import main
from loadtest.witness.guidellm import LEAD_S, TAIL_S, data_rows, read_report, scenario_of
from loadtest.witness.plan import WitnessPlan
from loadtest.witness.sample import Sample, check_same_work
from loadtest.witness.summary import Pair, Verdict, verdict, witness_summary
from shared.errors import ConfigError, UnavailableError

FLAGS = ("--host", "http://h:1/", "--rate", "5", "--seconds", "4")


def plan(tmp_path: Path, *flags: str, **values: Any) -> WitnessPlan:
    fields: dict[str, Any] = {"repeats": 3, "seed": 1, "within": 0.1, "out": tmp_path / "out"}
    return WitnessPlan(**(fields | values), flags=(*FLAGS, *flags))


def sample(*ttft_s: float, prompt_tokens: int = 10, failed: int = 0) -> Sample:
    return Sample(
        ttft_s=ttft_s,
        late_s=tuple(0.0 for _ in ttft_s),
        tokens=tuple((prompt_tokens, 4) for _ in ttft_s),
        failed=failed,
    )


def pair(ours: float, theirs: float) -> Pair:
    return Pair(seed=0, first="ours", ours=sample(ours), theirs=sample(theirs))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.95, 1.05, Verdict.AGREES),
        (0.9, 1.1, Verdict.AGREES),
        (0.85, 1.0, Verdict.UNDECIDED),
        (0.8, 1.2, Verdict.UNDECIDED),
        (1.0, 1.2, Verdict.UNDECIDED),
        (0.7, 0.89, Verdict.DIFFERS),
        (1.11, 1.3, Verdict.DIFFERS),
    ],
)
def test_the_whole_interval_must_be_within_the_bound(
    low: float, high: float, expected: Verdict
) -> None:
    ratio = {"ratio": (low + high) / 2, "low": low, "high": high}
    assert verdict(ratio, within=0.1) is expected


def test_repeats_are_drawn_as_pairs() -> None:
    """A machine that slows down over the run does so to both; the ratio in a repeat stays."""
    found = witness_summary(
        [pair(0.1 * n, 0.1 * n / 1.05) for n in (1, 2, 4)], within=0.1, facts={}
    )
    ratio = found["ttft_p50"]
    assert (ratio["low"], ratio["ratio"], ratio["high"]) == pytest.approx((1.05, 1.05, 1.05))
    assert found["verdict"] == "agrees"
    assert [row["ratio"] for row in found["repeats"]] == pytest.approx([1.05] * 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (sample(1.0, 1.0, failed=1), sample(1.0, 1.0), "of 2 requests of ours, 2 finished"),
        (sample(1.0, 1.0), sample(1.0), "requests of theirs, 1 finished and 0 failed"),
        (
            sample(1.0, 1.0),
            sample(1.0, 1.0, prompt_tokens=11),
            "tokens are in theirs and not in ours",
        ),
    ],
)
def test_runs_that_did_other_work_are_not_compared(ours: Sample, theirs: Sample, text: str) -> None:
    with pytest.raises(UnavailableError, match=text):
        check_same_work(ours, theirs, planned=2, repeat=0)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--repeats", "2"], "no interval below 3"),
        (["--within", "1.5"], "within is 1.5"),
        (["--workload", "multi_turn"], "conversations"),
        (["--workload", "cancel"], "clients that leave"),
        (["--workload", "slow_reader"], "slow readers"),
        (["--api", "grpc"], "--api cannot be chosen"),
        (["--closed", "4"], "--closed cannot be chosen"),
        (["--rate", "0"], "rate is 0"),
    ],
)
def test_what_a_witness_cannot_do_is_refused_before_anything_is_run(
    wrong: Sequence[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "guidellm"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    out = str(tmp_path / "out")
    assert main([*FLAGS, "--guidellm", str(program), "--out", out, *wrong]) == 3
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_results_are_never_mixed(tmp_path: Path) -> None:
    (tmp_path / "out/runs").mkdir(parents=True)
    with pytest.raises(ConfigError, match="other runs"):
        plan(tmp_path)


def test_the_data_set_is_our_schedule(tmp_path: Path) -> None:
    settings = plan(tmp_path).settings(0)
    schedule = schedule_of(settings)
    words = [Word(f" {word}", (number,)) for number, word in enumerate(WORDS)]
    prompts = PromptMaker(words, seed=settings.seed)
    rows = data_rows(schedule, prompts)
    moments = [LEAD_S + arrival.due_s for arrival, _ in schedule]
    assert [row["relative_timestamp"] for row in rows] == [*moments, moments[-1] + TAIL_S]
    assert rows[-1]["output_tokens_count"] == 1
    for row, (_, request) in zip(rows[:-1], schedule, strict=True):
        ((message,), tokens) = row["messages"], row["output_tokens_count"]
        assert message == {"role": "user", "content": prompts.make(request).text}
        assert len(message["content"].split()) == request.prompt_tokens
        assert tokens == request.answer_tokens


def test_the_settings_ask_for_what_ours_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "sk-secret")
    settings = plan(tmp_path, "--mode", "both", "--keep-rate", "0.3").settings(1)
    found = scenario_of(settings, folder=tmp_path, requests=7, model="m/n")
    spec = found["spec"]
    assert spec["backend"]["target"] == "http://h:1"
    assert spec["backend"]["request_format"] == "/v1/chat/completions"
    asked = {"temperature": 0, "tandem": {"mode": "both", "keep_rate": 0.3}}
    assert spec["backend"]["extras"]["body"] == asked
    assert spec["profile"] == {"kind": "replay", "schedule_turn": "timestamp"}
    assert spec["constraints"] == [{"kind": "max_requests", "count": 8}]
    assert "sk-secret" not in json.dumps(found)


@pytest.mark.parametrize("text", ["", "{}", '{"benchmarks": [1, 2]}', '{"benchmarks": [{}]}'])
def test_a_report_of_another_form_is_told_apart(text: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(UnavailableError, match="no report of guidellm"):
        read_report(file, span_s=4.0)


def write_report(tmp_path: Path, **requests: list[dict[str, Any]]) -> Path:
    by_status: dict[str, Any] = {"successful": [], "errored": [], "incomplete": []}
    report = {
        "metadata": {"guidellm_version": "0.8.1"},
        "benchmarks": [{"requests": by_status | requests}],
    }
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    return file


def test_the_request_after_the_last_does_not_count(tmp_path: Path) -> None:
    row = {
        "time_to_first_token_ms": 500, "request_dispatch_delay": 0.0,
        "prompt_tokens": 10, "output_tokens": 4,
    }  # fmt: skip
    starts = (100.0, 104.0, 104.0 + TAIL_S)
    done = [row | {"request_start_time": start} for start in starts]
    file = write_report(tmp_path, successful=done)
    assert read_report(file, span_s=4.0).sample.tokens == ((10, 4), (10, 4))


def test_a_run_in_which_all_requests_failed_is_told_so(tmp_path: Path) -> None:
    theirs = read_report(write_report(tmp_path, errored=[{}, {}]), span_s=4.0).sample
    with pytest.raises(UnavailableError, match="of theirs, 0 finished and 2 failed"):
        check_same_work(sample(1.0, 1.0), theirs, planned=2, repeat=0)
