"""vLLM beside the bench of decode steps: when it is looked at, and what is told."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtest.micro import step_peer
from loadtest.micro.decode_step import case_beside
from loadtest.micro.step_bounds import step_bounds
from loadtest.micro.step_peer import StepPeer, fit_together, step_settings
from loadtest.micro.step_shapes import CASES, TINY, StepCase
from loadtest.micro.step_times import mean_growth
from loadtest.micro.vllm_peer import VllmSettings
from shared.errors import InternalError, UnavailableError

H200 = 150_109_880_320
DEVICE = torch.device("cuda")


class Engine:
    """Answers at once; the moments of its life go to `life`."""

    def __init__(self, settings: VllmSettings, *, life: list[str], fails_at: int = -1) -> None:
        self.settings = settings
        self.facts = {"vllm": "0.0"}
        self._life = life
        self._fails_at = fails_at
        life.append("start")

    def between_tokens(self, *, batch: int, tokens: int, steps: int) -> dict[str, Any]:
        if sum(each.startswith("look") for each in self._life) == self._fails_at:
            raise UnavailableError("vLLM's process ended with 1")
        self._life.append(f"look {batch} x {tokens}")
        return {"step_ms": {"median": 5.0}, "steps": steps}

    def close(self) -> None:
        self._life.append("end")


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Engines are stand-ins on a device of an H200's size; what happened, in order."""
    happened: list[str] = []
    monkeypatch.setattr(step_peer, "VllmPeer", lambda s: Engine(s, life=happened))
    monkeypatch.setattr(step_peer, "why_no_vllm", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=H200)
    )
    return happened


def ours(happened: list[str]) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        happened.append("ours")
        times = {"dense": {"median": 4.0}, "delta": {"median": 2.0}, "pair": {"median": 1.0}}
        return {"step_ms": times}

    return run


def chosen(only: str) -> dict[str, StepCase]:
    return {name: case for name, case in CASES.items() if only in name}


def peer_of(cases: dict[str, StepCase], given: Any = None, *, wanted: bool = True) -> StepPeer:
    return StepPeer(cases, device=DEVICE, given=given, wanted=wanted, progress=lambda _: None)


def test_both_in_memory_it_is_timed_before_and_after(life: list[str]):
    cases = chosen("1 x 32768")
    peer = peer_of(cases)
    (name,) = cases
    found = peer.beside(name, ours(life))
    peer.close()
    peer.close()
    assert life == ["start", "look 1 x 32768", "ours", "look 1 x 32768", "end"]
    assert found["vllm"]["order"] == "vllm, ours, vllm, both in memory"
    assert found["vllm"]["step_ms"]["median"] == 5.0
    assert found["vllm"]["engine"] == {"vllm": "0.0"}
    assert found["bounds"]["vllm over pair"] == {"value": 5.0, "at_least": 1.25, "met": True}


def test_it_does_the_work_that_ours_does(life: list[str]):
    cases = chosen("1 x 32768")
    peer = StepPeer(
        cases, device=DEVICE, given=None, wanted=True, progress=lambda _: None, growth=109
    )
    (name,) = cases
    peer.beside(name, ours(life))
    assert life.count("look 1 x 32877") == 2
    assert mean_growth(12) == 109


def test_what_does_not_fit_takes_turns(life: list[str]):
    cases = chosen("llama")
    peer = peer_of(cases)
    found = [peer.beside(name, ours(life)) for name in cases]
    peer.close()
    assert life == ["start", "look 16 x 32768", "look 1 x 32768", "end", "ours", "ours"]
    assert all(each["vllm"]["order"].startswith("vllm first, ended") for each in found)
    assert "engine" in found[0]["vllm"]


def test_another_model_gets_another_engine(life: list[str]):
    cases = chosen("18432") | chosen("1 x 32768")
    peer = peer_of(cases)
    for name in cases:
        peer.beside(name, ours(life))
    peer.close()
    looks = [f"look {case.batch} x {case.context}" for case in cases.values()]
    turn = [["start", look, "ours", look, "end"] for look in looks]
    assert life == turn[0] + turn[1]


def test_a_running_engine_is_taken_if_it_can(life: list[str]):
    cases = chosen("1 x 32768")
    (name,) = cases
    settings = step_settings(cases)
    given = Engine(replace(settings, kv_tokens=70_000, max_tokens=66_000), life=life)
    peer_of(cases, given).beside(name, ours(life))
    assert life == ["start", "look 1 x 32768", "ours", "look 1 x 32768"]
    life.clear()
    small = Engine(replace(settings, kv_tokens=100), life=life)
    peer_of(cases, small).beside(name, ours(life))
    assert life[:4] == ["start", "end", "start", "look 1 x 32768"]


def test_an_engine_that_fails_costs_only_its_figures(
    life: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_peer, "VllmPeer", lambda s: Engine(s, life=life, fails_at=0))
    cases = chosen("64 x")
    peer = peer_of(cases)
    found = [peer.beside(name, ours(life)) for name in cases]
    assert life == ["start", "end", "ours", "ours"]
    assert [each["vllm"] for each in found] == [
        {"used": False, "failed": "vLLM's process ended with 1"},
        {"used": False, "failed": "its engine ended"},
    ]
    assert set(found[0]["bounds"]) == {"dense over delta"}
    life.clear()
    monkeypatch.setattr(step_peer, "VllmPeer", lambda s: Engine(s, life=life, fails_at=1))
    cases = chosen("1 x 32768")
    (last,) = (peer_of(cases).beside(name, ours(life)) for name in cases)
    assert last["vllm"]["step_ms"]["median"] == 5.0
    assert last["vllm"]["failed"] == "vLLM's process ended with 1"


def test_a_case_of_ours_that_fails_keeps_what_the_engine_was_timed_at(life: list[str]):
    def wrong() -> dict[str, Any]:
        raise InternalError("dense: logits are off")

    cases = chosen("1 x 32768")
    (name,) = cases
    lines: list[str] = []
    found = case_beside(peer_of(cases), name, wrong, progress=lines.append)
    assert lines == [f"{name}: dense: logits are off"]
    assert found["failed"] == "dense: logits are off"
    assert found["vllm"]["step_ms"]["median"] == 5.0
    assert found["vllm"]["order"] == "vllm, then ours, which failed"
    assert life == ["start", "look 1 x 32768"]
    found = case_beside(peer_of(cases, wanted=False), name, wrong, progress=lines.append)
    assert found == {"failed": "dense: logits are off"}


def test_left_out_it_says_so(life: list[str], monkeypatch: pytest.MonkeyPatch):
    cases = chosen("1 x 32768")
    (name,) = cases
    found = peer_of(cases, wanted=False).beside(name, ours(life))
    assert found["vllm"] == {"used": False, "reason": "left out by --peer"}
    monkeypatch.setattr(step_peer, "why_no_vllm", lambda: "vllm is not installed")
    assert peer_of(cases).beside(name, ours(life))["vllm"]["reason"] == "vllm is not installed"
    assert life == ["ours", "ours"]


def test_memory_is_reckoned_by_shape():
    def fits(only: str) -> bool:
        cases = chosen(only)
        settings = step_settings(cases)
        return all(fit_together(c, settings, memory_bytes=H200) for c in cases.values())

    assert fits("18432")
    assert fits("1 x 32768")
    assert not fits("16 x 32768")
    assert not fits("llama")


def test_bounds_of_a_case_that_nothing_is_asked_of():
    assert step_bounds("tiny", {"step_ms": {"dense": {"median": 1.0}}}) == {}
    assert TINY.config not in [case.config for case in CASES.values()]
