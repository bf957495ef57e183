"""The embedded real model through `tandem up` and the command line."""

import json
import re

import httpx
import pytest

from tests.support.processes import run_tandem, running_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def up(smollm2_dir):
    with running_up("--model", "smollm2") as process:
        yield process


def test_one_shot_chat_answers_sensibly(up):
    result = run_tandem(
        "chat", "--url", up.url, "--max-tokens", "24", "What is the capital of France?"
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "TTFT" in result.stdout


def test_long_prompt_is_pruned_and_short_one_is_not(up):
    def ask(text):
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": text}],
            "max_completion_tokens": 2,
        }
        response = httpx.post(f"{up.url}/v1/chat/completions", json=body, timeout=120)
        return response.json()["tandem"]

    long = ask("The river was wide and slow that year, and the boats were late. " * 50)
    short = ask("Hello")
    assert long["kept_tokens"] == max(256, int(long["prompt_tokens"] * 0.2))
    assert short["kept_tokens"] == short["prompt_tokens"]


def test_health_commands(up):
    gateway = run_tandem("health", "--address", up.url.removeprefix("http://"), "--json")
    assert gateway.returncode == 0
    assert json.loads(gateway.stdout)["ready"] is True
    for role in ("prefill", "decode"):
        result = run_tandem("health", "--role", role, "--address", up.worker(f"{role}-0"))
        assert result.returncode == 0, result.stdout
        assert "profile smollm2-135m-instruct (" in result.stdout
    assert run_tandem("health", "--address", "127.0.0.1:9").returncode == 1


def test_demo_compares_both_ways_and_leaves_nothing(smollm2_dir):
    result = run_tandem("demo", "--document-tokens", "700", "--max-tokens", "4", timeout_s=300)
    assert result.returncode == 0, result.stderr
    for text in ('What is "pdb"?', "tandem.mode=both", "tandem.mode=full", "time to first token"):
        assert text in result.stdout
    kept = re.search(r"kept tokens +│ (\d+) +│ (\d+)", result.stdout)
    prompt = re.search(r"prompt tokens +│ (\d+)", result.stdout)
    assert kept, result.stdout
    assert prompt, result.stdout
    assert int(kept[1]) < int(kept[2]) == int(prompt[1])
    assert "stopping decode" in result.stderr
