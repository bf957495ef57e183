"""What `tandem up` does with signals, deaths and mistakes."""

import os
import re
import signal
import socket
import time

import httpx
import psutil
import pytest

from deploy.launch import ROLE_MODULES
from tests.support.processes import FREE_PORTS, UpProcess, run_tandem, running_up
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def wait_for_text(up, text, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while text not in "\n".join(up.err):
        assert time.monotonic() < deadline, up.log()
        time.sleep(0.05)


def test_sigterm_drains_in_order_and_leaves_nothing(tiny_model_dir):
    with running_up("--model", str(tiny_model_dir), "--decode", "2") as up:
        children = psutil.Process(up.process.pid).children(recursive=True)
        assert len(children) == 4
        assert up.stop() == 0
    order = re.findall(r"stopping (gateway|prefill|decode)", "\n".join(up.err))
    assert order == ["gateway", "prefill", "decode"]
    assert not [child for child in children if child.is_running()]


def test_no_prefill_workers_at_all(tiny_model_dir):
    with running_up("--model", str(tiny_model_dir), "--prefill", "0") as up:
        assert any("reads prompts of up to" in text for text in up.out), up.log()
        body = {"model": "tiny", "prompt": "go", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{up.url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 4
        assert "no_prefill_worker" in answer["tandem"]["route"]
        assert up.stop() == 0


def test_dead_role_is_named_and_the_others_end(tiny_model_dir):
    with running_up("--model", str(tiny_model_dir)) as up:
        children = psutil.Process(up.process.pid).children(recursive=True)
        body = {
            "model": "tiny",
            "prompt": "go",
            "max_tokens": 400,
            "stream": True,
            "ignore_eos": True,
        }
        lines = []
        with httpx.stream("POST", f"{up.url}/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 3:
                    os.kill(up.pid(ROLE_MODULES["decode"]), signal.SIGKILL)
        assert up.wait_end() == 1
    assert '"error"' in "\n".join(lines)
    assert "data: [DONE]" not in lines
    assert "decode-0 ended with signal 9" in "\n".join(up.err)
    assert not [child for child in children if child.is_running()]


def test_second_signal_kills_what_the_first_would_finish(tiny_model_dir):
    up = UpProcess("--model", str(tiny_model_dir))
    try:
        up.wait_ready()
        children = psutil.Process(up.process.pid).children(recursive=True)
        body = {"model": "tiny", "prompt": "go", "max_tokens": 900, "stream": True}
        body["ignore_eos"] = True
        with httpx.stream("POST", f"{up.url}/v1/completions", json=body, timeout=60) as response:
            assert next(response.iter_lines()).startswith("data: ")
            # The answer never ends by itself.
            os.kill(up.pid(ROLE_MODULES["decode"]), signal.SIGSTOP)
            up.process.send_signal(signal.SIGINT)
            wait_for_text(up, "stopping gateway")
            assert up.process.poll() is None
            up.process.send_signal(signal.SIGINT)
            assert up.wait_end(timeout_s=15) == 1
    finally:
        up.stop()
    assert "second signal: killing every role" in "\n".join(up.err)
    assert not [child for child in children if child.is_running()]


def test_a_busy_port_is_named_before_anything_starts(tiny_model_dir):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        result = run_tandem("up", "--model", str(tiny_model_dir), *FREE_PORTS, "--rest-port", port)
    assert result.returncode == 5, result.stderr
    assert result.stderr.startswith(f"error: --rest-port: port {port}")


def test_roles_end_when_the_supervisor_is_killed(tiny_model_dir):
    up = UpProcess("--model", str(tiny_model_dir))
    up.wait_ready()
    children = psutil.Process(up.process.pid).children(recursive=True)
    up.process.kill()
    up.process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(child.is_running() for child in children):
        time.sleep(0.1)
    assert not [child for child in children if child.is_running()]


def test_workers_found_through_redis_serve(tiny_model_dir):
    redis = RedisServer()
    redis.start()
    try:
        with running_up("--model", str(tiny_model_dir), "--redis-url", redis.url) as up:
            body = {"model": "tiny", "prompt": "go", "max_tokens": 4}
            url = f"{up.url}/v1/completions"
            assert httpx.post(url, json=body, timeout=60).status_code == 200
            redis.stop()
            assert httpx.post(url, json=body, timeout=60).status_code == 200
    finally:
        redis.stop()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("up", "--decode", "0"), 3, "needs at least one worker"),
        (("up", "--prefil", "1"), 2, "unrecognized arguments"),
        (("decode", "--max-batch", "many"), 3, "whole number"),
        (("prefill", "--model", "no-such-model", "--port", "0", "--admin-port", "0"), 6, "unknown"),
    ],
)
def test_mistakes_end_with_the_documented_code(arguments, code, text):
    result = run_tandem(*arguments)
    assert result.returncode == code, result.stderr
    assert text in result.stderr


def test_busy_port_names_itself_and_ends_with_5(tiny_model_dir):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        result = run_tandem(
            "decode", "--model", str(tiny_model_dir), "--port", port, "--admin-port", "0"
        )
    assert result.returncode == 5, result.stderr
    assert f"port {port}" in result.stderr
