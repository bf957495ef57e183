"""`tandem bench gateway` with a few streams: real processes, and every text compared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from tests.support.tiny_tokenizer import write_tokenizer_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("model"))


def bench(folder: Path, *flags: str) -> str:
    sizes = ["--repeats", "1", "--seconds", "0.5", "--open-streams", "2", "--prompt-tokens", "20"]
    command = ["bench", "gateway", "--model", str(folder), *sizes, *flags]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_both_arms_are_measured_and_every_answer_is_right(folder: Path) -> None:
    flags = ("--streams", "2", "--stream-tokens", "30", "--tokens-per-message", "3", "--json")
    long = ("--long-prompts", "600")
    result = json.loads(bench(folder, *flags, *long))
    assert set(result["throughput"]) == {"3"}
    for arm in ("gateway", "relay"):
        assert result["first_token"][arm]["requests"] > 0
        flow = result["throughput"]["3"][arm]
        assert flow["tokens_per_s"]["median"] > 0
        assert set(flow["cpu_s_per_1000_tokens"]) == {arm, "workers", "client"}
    arrived = sum(result["first_token"][arm]["requests"] for arm in ("gateway", "relay"))
    assert result["parity"]["answers_compared"] == arrived + 2 * 2 + 2 * 2 * 24
    assert set(result["limits"]) == {
        "added_ttft_p50_ms", "added_ttft_p99_ms", "tokens_per_s", "tokens_per_s_of_relay",
        "added_ttft_p50_ms_600_ids_http", "added_ttft_p50_ms_600_ids_grpc",
    }  # fmt: skip
    assert result["sizes"]["stream_tokens"] == 30
    for client in ("http", "grpc"):
        added = result["long_prompts"]["600"][client]
        assert 0 < added["min"] <= added["p25"] <= added["median"] <= added["max"]
        assert added["requests"] == result["sizes"]["long_requests"]


def test_long_prompts_can_be_left_out(folder: Path) -> None:
    result = json.loads(bench(folder, "--streams", "0", "--long-prompts", "0", "--json"))
    assert result["long_prompts"] == result["throughput"] == {}
