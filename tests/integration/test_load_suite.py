"""The load suite as its users start it: Locust in a process of its own, against a gateway."""

import asyncio
import json
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import pytest

from loadtest.load.__main__ import main
from tests.support.faulty_completions import OK, USAGE, WELL, faulty_completions, text
from tests.support.gateway_rig import running_rig
from tests.support.load_runs import RUN, started, summary_in
from tests.support.processes import run_tandem
from tests.support.tiny_tokenizer import write_tokenizer_folder

LOCUST = ("-m", "locust", "-f", "loadtest/load/locustfile.py", "--headless", "--only-summary")
PATIENT = ("--slo", "chat:ttft=60,tpot=60", "--max-lag", "1000")  # the machine may be busy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("model"))


async def test_an_open_loop_over_rest_is_served_in_time(model: Path, tmp_path: Path) -> None:
    out, counted = tmp_path / "out", tmp_path / "locust"
    flags = ("--rate", "12", "--seconds", "1.5", "--seed", "3", "--out", str(out), *PATIENT)
    async with running_rig(model) as rig:
        code, said = await started(*LOCUST, "--host", rig.url, "--json-file", str(counted), *flags)
        sampled = len(rig.simulation.sampling)
    assert code == 0, said
    found = summary_in(out)
    counts = found["requests"]
    assert found["verdict"] == "pass"
    assert found["planned"] == counts["offered"] == counts["finished"] == counts["met"] > 5
    assert (counts["failed"], found["failures"]) == (0, {})
    assert sampled >= counts["offered"]
    assert found["server"]["properties"]["vocab_size"] > 0
    assert len(found["server"]["fingerprint"]) == 64
    assert found["settings"]["seed"] == 3
    assert found["lag"]["p99_s"] >= 0
    requests = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert all(32 <= each["prompt_tokens"] <= 256 for each in requests)
    assert all(8 <= each["answer_tokens"] <= 48 for each in requests)
    assert all(0 < each["ttft_s"] <= each["e2e_s"] for each in requests)
    events = {row["method"]: row for row in json.loads(counted.with_suffix(".json").read_text())}
    assert {name: row["num_requests"] for name, row in events.items()} == dict.fromkeys(
        ("ttft", "itl_mean", "itl_max", "e2e", "tpot"), counts["offered"]
    )
    assert {row["name"] for row in events.values()} == {"chat"}
    assert "data:image/png" in (out / "report.html").read_text()


async def test_a_closed_loop_over_grpc_misses_bounds_that_none_can_meet(
    model: Path, tmp_path: Path
) -> None:
    async with running_rig(model) as rig:
        code, said = await started(
            *RUN, "--host", rig.url, "--api", "grpc", "--grpc", rig.gateway.grpc_address,
            "--closed", "2", "--seconds", "0.5", "--slo", "chat:ttft=1e-9,tpot=60",
            "--out", str(tmp_path), "--no-report",
        )  # fmt: skip
    assert code == 1, said
    found = summary_in(tmp_path)
    assert found["verdict"] == "missed"
    assert found["requests"]["finished"] == found["requests"]["offered"] >= 1
    assert found["requests"]["met"] == found["goodput_per_s"] == 0
    assert found["throughput"]["answer_tokens_per_s"] > 0
    assert (found["lag"], found["stages"]) == (None, [])
    assert not (tmp_path / "report.html").exists()


async def test_what_breaks_within_a_stream_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    error = {"error": {"message": "the decode worker left", "code": "worker_lost"}}
    steps = [
        WELL,
        (OK, [text("a"), error, "[DONE]"], True),
        (OK, [text("a"), text("b")], False),
        (OK, [text("a")], True),
        (OK, [text("a"), USAGE, "[DONE]"], True),
        ("503 Service Unavailable", [], True),
    ]
    async with faulty_completions(steps) as url:
        code, said = await started(
            *RUN, "--host", url, "--rate", "30", "--seconds", "1", "--out", str(tmp_path),
            "--no-report", *PATIENT,
        )  # fmt: skip
    assert code == 1, said
    found = summary_in(tmp_path)
    offered = found["requests"]["offered"]
    assert offered == found["planned"] > len(steps)
    reasons = [None, "error_frame", "truncated", "truncated", "no_finish_reason", "http_503"]
    expected = Counter(islice(cycle(reasons), offered))
    assert found["requests"]["finished"] == found["requests"]["met"] == expected.pop(None)
    assert found["failures"] == expected
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert {line["detail"] for line in lines if line["failure"] == "error_frame"} == {
        '{"message":"the decode worker left","code":"worker_lost"}'
    }


async def test_a_generator_that_is_late_says_nothing_about_the_server(tmp_path: Path) -> None:
    async with faulty_completions([WELL]) as url:
        done = await asyncio.to_thread(
            run_tandem, "bench", "serve", "--host", url, "--out", str(tmp_path), "--json",
            "--rate", "20", "--seconds", "0.5", "--no-report", *PATIENT[:2], "--max-lag", "1e-12",
        )  # fmt: skip
    assert done.returncode == 7, done.stderr
    found = json.loads(done.stdout)
    assert found == summary_in(tmp_path)
    assert found["verdict"] == "client saturated"
    assert found["requests"]["offered"] == found["requests"]["met"] > 0
    assert found["lag"]["share"] > found["lag"]["limit"] == 1e-12


async def test_a_run_without_a_server_says_so(tmp_path: Path) -> None:
    code, said = await started(
        *RUN, "--host", "http://127.0.0.1:1", "--out", str(tmp_path / "never")
    )
    assert code == 1
    assert "error: http://127.0.0.1:1 cannot be reached" in said
    assert not (tmp_path / "never").exists()


def test_settings_are_refused_before_locust_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--host", "http://h", "--ramp", "fast"]) == 3
    assert "stages 'fast' cannot be read" in capsys.readouterr().err


def test_arms_are_compared_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"a={tmp_path}", f"b={tmp_path}"]) == 3
    assert "no result of a load run" in capsys.readouterr().err
    assert main(["compare", "a", "b"]) == 3
    assert "NAME=RUN,RUN" in capsys.readouterr().err


async def test_a_run_that_falls_behind_more_and_more_ends_early(
    model: Path, tmp_path: Path
) -> None:
    async with running_rig(model) as rig:
        rig.simulation.token_delay_s = 60.0
        code, said = await started(
            *RUN, "--host", rig.url, "--rate", "20", "--seconds", "60", "--max-in-flight", "15",
            "--max-lag", "1000", "--out", str(tmp_path),
        )  # fmt: skip
    assert code == 9, said
    assert "ended early after" in said
    assert "16 requests were under way, more than 15" in said
    found = summary_in(tmp_path)
    assert found["verdict"] == "server saturated"
    assert found["requests"]["offered"] == found["failures"]["unfinished"] == 16
    assert found["planned"] > 1_000
    assert found["stopped"]["at_s"] < 50
    assert "The run was ended early after" in (tmp_path / "report.html").read_text()
