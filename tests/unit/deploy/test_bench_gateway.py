"""The tables of `tandem bench gateway`, and its flags."""

from typing import Any

import pytest

from deploy.bench_gateway import command_line, run_gateway
from loadtest.gateway_cost.run import GatewayCost
from loadtest.gateway_cost.settings import CostSettings


def spread(middle: float) -> dict[str, float]:
    return {"median": middle, "min": middle - 1, "max": middle + 1}


def arm(name: str) -> dict[str, Any]:
    cpu = {process: spread(2.0) for process in (name, "workers", "client")}
    return {
        "tokens_per_s": spread(9000.0),
        "cpu_s_per_1000_tokens": cpu,
        "tokens_per_chunk": spread(1.5),
    }


def first(p50: float) -> dict[str, Any]:
    return {
        "requests": 7,
        "added_ttft_ms": {"p50": p50, "p90": 4.0, "p99": 5.0, "max": 6.0},
        "added_ttft_p50_ms_by_run": spread(p50),
        "client_late_ms_p99": 0.5,
    }


RESULT = {
    "first_token": {"gateway": first(2.25), "relay": first(1.25)},
    "long_prompts": {"10000": {"http": spread(3.5) | {"p25": 3.0, "requests": 40}}},
    "throughput": {
        "1": {
            "gateway": arm("gateway"),
            "relay": arm("relay"),
            "tokens_per_s_of_relay": spread(1.0),
        }
    },
    "limits": {
        "added_ttft_p50_ms": {"measured": 2.25, "at_most": 3.0, "met": True},
        "tokens_per_s": {"measured": 7000.0, "at_least": 8000.0, "met": False},
    },
    "parity": {"answers_compared": 77},
    "command": "tandem bench gateway --seed 1",
    "commit": "0123456789abcdef",
    "uncommitted_changes": True,
    "hardware": {"cpu": "a processor", "cores": 2, "load_average": [0.5, 0.0, 0.0]},
}


def test_tables_say_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def unprepared(_bench: object, _settings: object, *, progress: object) -> None:
        pass

    async def canned(_bench: object, *, command: str) -> dict[str, Any]:
        assert command == "typed"
        return RESULT

    monkeypatch.setattr(GatewayCost, "__init__", unprepared)
    monkeypatch.setattr(GatewayCost, "run", canned)
    monkeypatch.setenv("COLUMNS", "200")
    settings = CostSettings(model_dir=tmp_path, gateway_command=lambda flags: flags)
    run_gateway(settings, command="typed", as_json=False)
    shown = capsys.readouterr().out
    for expected in (
        "2.25 (1.25 to 3.25)",
        "3.50 (2.50 to 4.50)",
        "9,000 (8,999 to 9,001)",
        "1 in a worker's message",
        "<= 3",
        ">= 8000",
        "NO",
        "77 answers compared",
        "commit 0123456789ab with uncommitted changes",
    ):
        assert expected in shown


def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/tandem", "bench", "gateway", "--model", "a b"])
    assert command_line() == "tandem bench gateway --model 'a b'"
