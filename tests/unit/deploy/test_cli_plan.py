"""`tandem plan`: flags in, tables and JSON out."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from deploy import cli, plan_measure
from deploy.plan_measure import pair_overheads
from loadtest.micro.plan_contention import Role
from loadtest.micro.transfer import MIB
from loadtest.plan.cluster import Split
from loadtest.plan.measure import MeasureSettings
from loadtest.plan.measure import load as load_model
from loadtest.plan.profile import Contention
from loadtest.plan.profile_file import read_profile, write_profile
from shared.errors import ConfigError, TransportError
from tests.support.plan_parts import made_profile
from tests.support.plan_runs import record

runner = CliRunner()

CHAT = ["--workload", "chat", "--sizes", "cpu", "--jobs", "1", "--seed", "3"]


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    write_profile(made_profile(origin={"command": "made up"}), path)
    return path


def run(*arguments: str) -> str:
    result = runner.invoke(cli.app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan_as_json_has_the_keys_that_help_names(profile_file: Path):
    text = run("--profile", str(profile_file), *CHAT, "--rate", "5", "--gpus", "2", "--json")
    found = json.loads(text)
    named = {
        "arms", "model", "workload", "sizes_for", "slo", "attainment", "variation", "trace",
        "rate", "rules", "seed", "profile_origin", "command", "commit", "uncommitted_changes",
        "hardware", "python",
    }  # fmt: skip
    assert named == found.keys()
    usage = run("--help")
    assert all(name in usage for name in named)
    assert found["seed"] == 3
    full = found["arms"][0]
    assert full["smallest"]["rate"] == 5.0
    assert full["smallest"]["attainment"] >= 0.95
    assert full["sizes"][0]["gpus"] == 2
    row = {"throughput_per_s", "goodput_per_s", "ttft_p50_s", "ttft_p95_s", "tpot_p50_s",
           "tpot_p95_s", "prefill", "decode", "rate_per_gpu"}  # fmt: skip
    assert row <= full["sizes"][0].keys()


def test_a_plan_prints_its_tables_and_why_an_arm_is_hopeless(profile_file: Path):
    text = run("--profile", str(profile_file), *CHAT, "--rate", "5", "--keep", "0.3")
    assert "Fewest GPUs for 5 requests/s" in text
    assert "CLAA 0.3" in text
    assert "both 0.3" in text
    text = run(
        "--profile", str(profile_file), *CHAT, "--gpus", "4", "--slo", "chat:ttft=1e-6,tpot=1"
    )
    assert "Highest rate that is served in time" in text
    assert "even an idle cluster serves only 0%" in text
    assert "none" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "chat"], "no measured profile was named"),
        (["--profile", "nowhere.json"], "cannot be read"),
        (["--sizes", "tpu"], "--sizes cannot be 'tpu'"),
        (["--gpus", "two"], "--gpus cannot be 'two'"),
        (["--workload", "chess"], "workload 'chess' is unknown"),
        (["--slo", "rag:ttft=1,tpot=1"], "bounds for 'rag' would judge nothing"),
        (["validate", "--run", "nowhere"], "no measured profile was named"),
        (["--seed", "1", "validate", "--run", "nowhere"], "seed is 1, which would change nothing"),
    ],
)
def test_what_cannot_be_planned_is_said(arguments: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        runner.invoke(cli.app, ["plan", *arguments], catch_exceptions=False)


def test_a_run_is_validated_by_its_folder(profile_file: Path, tmp_path: Path):
    record(tmp_path / "run")
    arguments = ["validate", "--profile", str(profile_file), "--run", str(tmp_path / "run"),
                 "--prefill", "2"]  # fmt: skip
    text = run(*arguments)
    assert "throughput and p95 TTFT are within 20% of the measured" in text
    found = json.loads(run(*arguments, "--json"))
    assert found["ok"]
    assert found["split"] == Split(prefill=2, decode=1).text
    slower = runner.invoke(cli.app, ["plan", *arguments[:-1], "1"])
    assert slower.exit_code == 1
    assert "not within 20%" in slower.stdout


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--transfers", "8", "one size of a transfer makes no line"),
        ("--transport", "pigeon", "unknown transport 'pigeon'"),
    ],
)
def test_what_makes_no_profile_is_refused_before_anything_is_timed(
    flag: str, value: str, said: str
):
    with pytest.raises(ConfigError, match=said):
        runner.invoke(cli.app, ["plan", "measure", flag, value], catch_exceptions=False)


class Pair(BaseHTTPRequestHandler):
    """A gateway whose answers say that everything but the stream itself was compute."""

    report: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "made up"}]}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        chunks = [
            {"choices": [{"delta": {"content": "one"}, "finish_reason": None}]},
            {"choices": [{"delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 3}, "tandem": {"phases_ms": self.report}},
        ]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send("".join([*lines, "data: [DONE]\n\n"]).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@pytest.fixture
def pair_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pair)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_a_pair_did_not_compute_is_overhead(pair_url: str, monkeypatch: pytest.MonkeyPatch):
    no_compute = {"prefill": 0.0, "first_decode": 0.0, "decode": 0.0}
    monkeypatch.setattr(Pair, "report", no_compute)
    found = pair_overheads(pair_url)
    assert found.first_token_s > 0
    monkeypatch.setattr(Pair, "report", dict.fromkeys(no_compute, 1e6))
    assert asdict(pair_overheads(pair_url)) == {"first_token_s": 0.0, "handoff_s": 0.0}


def test_a_server_that_tells_no_phases_is_refused(pair_url: str):
    with pytest.raises(ConfigError, match="do not say how long their phases took"):
        pair_overheads(pair_url)


def test_measure_writes_a_profile_that_plan_reads(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One model serves both measurements of this process."""
    asked: dict[str, Any] = {}
    loads: list[Any] = []

    def contention(loaded: Any, _work: Any, *, progress: Any) -> dict[Role, float]:
        assert loads == [loaded]
        progress("compared")
        return {Role.PREFILL: 1.5, Role.DECODE: 1.25}

    def load(settings: MeasureSettings) -> Any:
        loads.append(load_model(settings))
        return loads[-1]

    monkeypatch.setattr(plan_measure, "load", load)
    monkeypatch.setattr(plan_measure, "time_contention", contention)

    def transfers(**given: Any) -> dict[str, Any]:
        asked.update(given)
        sizes = [{"mib": m, "gbps": {"grpc": {"median": 1.0}}} for m in given["sizes"]]
        return {"sizes": sizes, "rejected": {"nixl": "its package is absent"}}

    monkeypatch.setattr(plan_measure, "measure_transfers", transfers)
    out = tmp_path / "tiny.json"
    flags = ["measure", "--model", str(tiny_model_dir), "--tokens", "32,96", "--batches", "2",
             "--contexts", "24,96", "--max-batch", "2", "--transfers", "1,4", "--repeats", "1",
             "--kv-bytes", str(4 * MIB), "--same-host", "--out", str(out)]  # fmt: skip
    assert "4 prompts, 8 decode steps, 2 transfers over grpc" in run(*flags)
    assert asked["sizes"] == (1, 4)
    profile = read_profile(out)
    assert profile.transfer[1].seconds == pytest.approx(4 * MIB / 1e9)
    assert profile.origin["command"]
    assert profile.contention == Contention(prefill=1.5, decode=1.25)
    assert len(loads) == 1
    with pytest.raises(TransportError, match="nixl was not measured: its package is absent"):
        run(*flags, "--transport", "nixl")
