"""The services of docker-compose.yml as processes: entrypoints, variables, health checks, drain."""

import json
import time

import httpx
import pytest

from tests.support.compose_project import HAS_COMPOSE
from tests.support.compose_run import ComposeRun, await_load, pair_of_pairs

pytestmark = [HAS_COMPOSE, pytest.mark.e2e, pytest.mark.timeout(300)]

ONE_THREAD = {"PREFILL_THREADS": "1", "DECODE_THREADS": "1"}


def chat_stream(run, *, model, max_tokens):
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "the quick brown fox " * 40}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return httpx.stream("POST", f"{run.url}/v1/chat/completions", json=body, timeout=120)


def chat(run, *, model, max_tokens, on_first_token):
    """All events of one answer; the callback runs after the first one."""
    events = []
    with chat_stream(run, model=model, max_tokens=max_tokens) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 1:
                    on_first_token()
    return events


def ready_workers(run):
    """Names of the workers that the gateway would send a request to."""
    workers = httpx.get(f"{run.url}/health", timeout=10).json()["workers"]
    return [worker["worker_id"] for worker in workers if not worker["draining"]]


def wait_until(true, *, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def test_services_start_answer_and_drain_in_order(tiny_model_dir, tmp_path):
    with ComposeRun(tmp_path, tiny_model_dir, environ=ONE_THREAD) as run:
        assert run.stop_order() == ["gateway", "prefill", "decode", "redis"]
        first, *others = run.stop_order()
        events = chat(
            run, model="tiny", max_tokens=64, on_first_token=lambda: run.signal_stop(first)
        )
        assert "error" not in events[-1], run.log_of(first)
        assert events[-1]["usage"]["completion_tokens"] == 64  # the drain let it finish
        assert events[-1]["tandem"]["transport"] == "grpc"
        assert run.wait_stopped(first) == 0, run.log_of(first)
        for name in others:
            run.signal_stop(name)
            assert run.wait_stopped(name) == 0, run.log_of(name)
        for role in ("gateway", "prefill", "decode"):
            assert "TANDEM_READY" in run.log_of(role)
            assert "drain" in run.log_of(role)


@pytest.mark.slow
def test_profile_load_shows_its_page_and_leaves_results(tiny_model_dir, tmp_path):
    environ = {**ONE_THREAD, "LOAD_SECONDS": "4", "LOAD_RATE": "2"}
    with ComposeRun(tmp_path, tiny_model_dir, environ, profiles=("load",)) as run:
        assert "Locust" in httpx.get(run.page, timeout=30).text
        await_load(run)
        assert run.stop_order()[0] == "load"
        run.signal_stop("load")
        assert run.wait_stopped("load") in {0, 1, 7}, run.log_of("load")  # a machine may be slow
        found = json.loads((tmp_path / "cache/load-results/summary.json").read_text())
        assert found["requests"]["offered"] == found["requests"]["finished"] > 0, run.log_of("load")
        assert (tmp_path / "cache/load-results/report.html").is_file()


@pytest.mark.slow
def test_two_pairs_of_the_gpu_layout_survive_the_loss_of_one_worker_each(tiny_model_dir, tmp_path):
    with pair_of_pairs(tmp_path, tiny_model_dir, say=print) as run:
        wait_until(lambda: len(ready_workers(run)) == 4)
        for name in ("prefill", "decode"):
            run.signal_stop(name)
            assert run.wait_stopped(name) == 0, run.log_of(name)
        wait_until(lambda: len(ready_workers(run)) == 2)
        events = chat(run, model="tiny", max_tokens=8, on_first_token=lambda: None)
        assert events[-1]["usage"]["completion_tokens"] == 8
