"""The screen of `tandem top` from states alone."""

import io
from typing import Any

import pytest
from rich.console import Console

from deploy import top
from deploy.top_view import screen
from shared.errors import UnavailableError


def worker(**changes: Any) -> dict[str, Any]:
    base = {
        "worker_id": "decode-1",
        "role": "decode",
        "address": "127.0.0.1:1",
        "draining": False,
        "reachable": True,
        "running": 3,
        "queued_tokens": 40,
        "free_pages": 25,
        "total_pages": 100,
        "transports": ["grpc", "nixl"],
        "device": "cuda:0",
    }
    return {**base, **changes}


def state(**changes: Any) -> dict[str, Any]:
    spread = {"p50": 12.5, "p95": 80.0, "count": 4}
    base = {
        "ready": True,
        "phase": "serving",
        "detail": "",
        "requests_in_flight": 2,
        "queue": {"requests": 1, "tokens": 900, "limit_tokens": 131072},
        "workers": [worker()],
        "traffic": {
            "window_s": 60.0,
            "tokens_per_s": 41.25,
            "requests": 4,
            "ttft_ms": spread,
            "phases_ms": {"prefill": spread},
            "recent": [
                {
                    "request_id": "req_1",
                    "endpoint": "/v1/completions",
                    "prompt_tokens": 900,
                    "kept_tokens": 180,
                    "completion_tokens": 32,
                    "ttft_ms": 12.5,
                    "tokens_per_s": 41.2,
                }
            ],
        },
        "flows": [
            {
                "prefill": "p",
                "decode": "decode-1",
                "transport": "grpc",
                "handoffs": 4,
                "kv_bytes": 3 << 30,
                "transfer_ms": 20.0,
            }
        ],
    }
    return {**base, **changes}


def drawn(given: dict[str, Any], *, width: int = 160) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(screen(given, source="http://here"))
    return file.getvalue()


def test_everything_is_on_the_page():
    text = drawn(state())
    for expected in (
        *("http://here", "ready", "1 requests, 900 of 131072 tokens", "41.2", "12.5 ms / 80.0 ms"),
        *("decode-1", "cuda:0", "grpc, nixl", "75% of 100 pages", "3.00 GiB", "5.0 ms each"),
        *("req_1", "900", "180"),
    ):
        assert expected in text, expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"draining": True}, "draining"), ({"reachable": False}, "out of reach")],
)
def test_workers_say_what_is_wrong(changes: dict[str, Any], expected: str):
    assert expected in drawn(state(workers=[worker(**changes)]))


def test_a_prefill_worker_has_no_pages():
    assert "pages" not in drawn(state(workers=[worker(total_pages=0, free_pages=0)]))


def test_nothing_yet_is_said():
    quiet = state(workers=[], flows=[], ready=False, detail="no_prefill_worker")
    spread = {"p50": None, "p95": None, "count": 0}
    quiet["traffic"] = {**quiet["traffic"], "ttft_ms": spread, "phases_ms": {}, "recent": []}
    text = drawn(quiet)
    for expected in ("not ready: no_prefill_worker", "none is known", "none yet", "- / -"):
        assert expected in text
    assert "KV moved" not in text


def test_a_narrow_terminal_is_no_error():
    assert "decode" in drawn(state(), width=60)


class Stopped(Exception):
    """Stands for Ctrl-C."""


def test_the_live_view_goes_on_and_says_when_the_gateway_has_gone(monkeypatch: pytest.MonkeyPatch):
    rounds: list[str] = []

    def states(_client: object):
        rounds.append("look")
        if len(rounds) > 2:
            raise UnavailableError("nobody answers; start it")
        yield state()

    def pause(_seconds: float) -> None:
        if len(rounds) > 2:
            raise Stopped

    monkeypatch.setattr(top, "live_states", states)
    monkeypatch.setattr(top, "pause", pause)
    file = io.StringIO()
    console = Console(file=file, width=140, height=60, force_terminal=True)
    with pytest.raises(Stopped):
        top.run_top(url="http://here", once=False, as_json=False, console=console)
    assert "decode-1" in file.getvalue()
    assert "no news: nobody answers" in file.getvalue()
