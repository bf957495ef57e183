"""vLLM as a peer: its process, asked through real pipes, with a stand-in for vLLM itself."""

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.micro.pass_arms import FULL, OwnClock, VllmPass, claa, summary, take_turns
from loadtest.micro.pass_bounds import bounds
from loadtest.micro.pass_vllm import ChunkChoice, choose_chunks, running_vllm, vllm_report
from loadtest.micro.vllm_child import window_of
from loadtest.micro.vllm_chunks import ChunkSwitch
from loadtest.micro.vllm_peer import VllmPeer, VllmSettings, why_no_vllm
from shared.errors import UnavailableError
from shared.model.random import random_config

ROOT = Path(__file__).parents[4]

STAND_IN = '''
import json, os
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.0"
print("vLLM prints where answers go")

class SamplingParams(SimpleNamespace):
    pass

class Engine:
    def __init__(self, given):
        scheduler = SimpleNamespace(
            async_scheduling=True,
            max_num_batched_tokens=given["max_num_batched_tokens"],
            max_num_seqs=given["max_num_seqs"],
            long_prefill_token_threshold=0,
        )
        self.vllm_config = SimpleNamespace(
            scheduler_config=scheduler,
            model_config=SimpleNamespace(max_model_len=given["max_model_len"]),
            cache_config=SimpleNamespace(
                kv_cache_memory_bytes=given["kv_cache_memory_bytes"],
                block_size=16,
                enable_prefix_caching=given["enable_prefix_caching"],
            ),
            compilation_config=SimpleNamespace(
                cudagraph_mode="FULL", **given["compilation_config"]
            ),
            attention_config="flash",
        )
        self.running = []

    def add_request(self, name, prompt, wanted):
        assert wanted.ignore_eos and len(prompt["prompt_token_ids"]) + wanted.max_tokens <= (
            self.vllm_config.model_config.max_model_len
        )
        self.running.append([len(prompt["prompt_token_ids"]), wanted.max_tokens])

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        """Reads prompts by its budget; what is read gives a token."""
        room = self.vllm_config.scheduler_config.max_num_batched_tokens
        out = []
        for request in self.running:
            take = min(room, request[0])
            request[0] -= take
            room -= take
            if request[0] == 0:
                request[1] -= 1
                out.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])]))
        self.running = [r for r in self.running if r[1] > 0]
        return out

class LLM:
    def __init__(self, *, model, **given):
        assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
        if os.environ.get("STAND_IN_FAILS"):
            raise RuntimeError("no memory for this")
        json.loads((Path(model) / "config.json").read_text())
        self.llm_engine = Engine(given)

    def collective_rpc(self, method, args):
        from loadtest.micro.vllm_chunks import ChunkSwitch
        worker = ChunkSwitch()
        worker.vllm_config = self.llm_engine.vllm_config
        return [getattr(worker, method)(*args)]
'''

SETTINGS = VllmSettings(
    config=random_config(), max_tokens=1000, batches=(4,), kv_tokens=4000, step_tokens=200
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `vllm` that children find."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text(STAND_IN)
    (package / "sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("stand_in")
def test_a_process_is_asked_for_times_and_ends():
    assert why_no_vllm() is None
    peer = VllmPeer(SETTINGS)
    try:
        assert peer.facts["max_num_batched_tokens"] == 200
        assert peer.facts["cudagraph_capture_sizes"] == [1, 4, 16]
        assert peer.facts["enable_prefix_caching"] is False
        assert peer.facts["kv_cache_memory_bytes"] == 4000 * 6 * 2 * 2 * 16 * 2
        found = peer.first_token(500, chunk_tokens=128)
        assert 0 <= found["submit_seconds"] <= found["seconds"]
        assert found["chunk_tokens"] == 128
        steps = peer.between_tokens(batch=4, tokens=300, steps=10)
        assert steps["prompt_tokens"] == 300 - 3 - 5
        assert abs(steps["mean_context"] - 300) < 5
        assert steps["step_ms"]["min"] <= steps["step_ms"]["median"] <= steps["step_ms"]["max"]
    finally:
        peer.close()
        peer.close()


@pytest.mark.usefixtures("stand_in")
def test_it_takes_turns_with_ours_by_its_own_clock():
    with running_vllm(SETTINGS, given=None, wanted=True) as peer:
        assert peer is not None
        arm = VllmPass(peer=peer, chunk_tokens={20: 0, 50: 16})
        assert isinstance(arm([3] * 20), OwnClock)
        arms: dict[str, Any] = {FULL: lambda ids: ids, "vllm": arm}
        timed = take_turns(arms, [3] * 50, repeats=3, device=torch.device("cpu"))
        found = summary(timed)
        assert len(found["arms"]["vllm"]["runs"]) == 3
        assert "peak_bytes" not in found["arms"]["vllm"]
        assert found["ratio_to_vllm"][FULL]["median"] > 0
        choice = ChunkChoice(chunk_tokens={10_000: 0, 32_768: 8192}, looks={10_000: {0: 1.0}})
        report = vllm_report(peer, choice)
        assert report["chunk_tokens"] == {"32768": 8192, "10000": "whole prompt"}
        assert report["first_token_seconds_by_chunk"] == {"10000": {"whole prompt": 1.0}}
        assert report["first_token_of_16_seconds"]["median"] > 0
        with running_vllm(SETTINGS, given=peer, wanted=False) as same:
            assert same is peer
        assert peer.facts["vllm"] == "0.0"


@pytest.mark.usefixtures("stand_in")
def test_a_start_that_fails_says_what_was_printed_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    peer = VllmPeer(SETTINGS)
    with pytest.raises(UnavailableError, match=r"(?s)vLLM's process ended with 1.*no memory for"):
        assert peer.facts
    assert peer.ended is not None
    peer.close()


@pytest.mark.usefixtures("stand_in")
def test_a_window_that_never_comes_is_said():
    peer = VllmPeer(replace(SETTINGS, step_tokens=100_000))
    with pytest.raises(UnavailableError, match="4 requests never answered together"):
        peer.between_tokens(batch=4, tokens=300, steps=-2)
    peer.close()


@pytest.mark.usefixtures("stand_in")
def test_its_whole_group_ends_with_the_parents_word(tmp_path: Path):
    pids = tmp_path / "pids"
    script = (
        "import json, subprocess, sys, time\n"
        "from loadtest.micro import vllm_child\n"
        "class Busy:\n"
        "    def __init__(self, settings):\n"
        "        engine = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"        open({str(pids)!r}, 'w').write(str(engine.pid))\n"
        "    def facts(self): return {}\n"
        "    def first_token(self, **_): time.sleep(60)\n"
        "    between_tokens = first_token\n"
        "vllm_child.TimedEngine = Busy\n"
        "vllm_child.main()\n"
    )
    peer = VllmPeer(SETTINGS, command=[sys.executable, "-c", script])
    assert peer.facts == {}
    peer._send({"do": "first_token"})
    assert peer._process.stdin is not None
    peer._process.stdin.close()
    assert peer._process.wait(20) == -signal.SIGKILL
    peer.close()
    with suppress(FileNotFoundError):  # gone, or dead and not reaped
        state = Path(f"/proc/{pids.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
        assert state in "ZX"


@pytest.mark.usefixtures("stand_in")
def test_an_answer_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadtest.micro.vllm_peer._START_SECONDS", 0.5)
    busy = "import sys, time; print('still loading', file=sys.stderr, flush=True); time.sleep(60)"
    peer = VllmPeer(SETTINGS, command=[sys.executable, "-c", busy])
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.5 s"):
        assert peer.facts
    assert peer._process.poll() is not None, "what hangs is ended, and not waited for again"
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.5 s"):
        peer.first_token(10, chunk_tokens=0)
    peer.close()


def test_an_arm_whose_process_ended_is_left_out():
    def gone(ids: list[int]) -> OwnClock:
        if len(calls := [*calls_of_gone, ids]) > 2:
            raise UnavailableError("vLLM's process ended with 1")
        calls_of_gone.append(calls[-1])
        return OwnClock(seconds=1.0)

    calls_of_gone: list[list[int]] = []
    arms: dict[str, Any] = {FULL: lambda ids: ids, "vllm": gone}
    timed = take_turns(arms, [3] * 5, repeats=3, device=torch.device("cpu"))
    assert len(timed[FULL].seconds) == 3
    assert set(summary(timed)) == {"arms", "ratio_to_full"}


def test_without_vllm_nothing_is_started():
    with running_vllm(SETTINGS, given=None, wanted=True) as peer:
        assert peer is None
    assert vllm_report(None) == {"used": False, "reason": "vllm is not installed for this Python"}


def test_a_window_begins_when_all_answer():
    events = [(0.0, 1), (1.0, 2), (2.0, 2), (2.5, 2), (3.5, 2), (4.0, 1)]
    found = window_of(events, batch=2, steps=3)
    assert found["step_ms"] == {"median": 1000.0, "min": 500.0, "max": 1000.0}
    assert found["mean_ms"] == pytest.approx(2500 / 3)
    assert (found["begins"], found["tokens_before"]) == (1.0, 3)
    with pytest.raises(ValueError, match="never answered together for 4 steps"):
        window_of(events, batch=2, steps=4)


def test_the_faster_way_to_read_a_prompt_is_tried():
    asked: list[tuple[int, int]] = []

    class Engine:
        def first_token(self, tokens: int, *, chunk_tokens: int) -> dict[str, Any]:
            asked.append((tokens, chunk_tokens))
            slow = {10_000: 8192, 32_768: 0}[tokens]
            return {"seconds": 2.0 if chunk_tokens == slow else 1.0}

    engine: Any = Engine()
    found = choose_chunks(engine, (1000, 10_000, 32_768, 65_536), chunk_tokens=None)
    assert found.chunk_tokens == {1000: 0, 10_000: 0, 32_768: 8192, 65_536: 0}
    assert found.looks == {10_000: {0: 1.0, 8192: 2.0}, 32_768: {0: 2.0, 8192: 1.0}}
    assert {tokens for tokens, _ in asked} == {10_000, 32_768}
    asked.clear()
    given = choose_chunks(engine, (10_000,), chunk_tokens=4096)
    assert (given.chunk_tokens, given.looks, asked) == ({10_000: 4096}, {}, [])
    assert callable(ChunkSwitch.tandem_set_chunk)


def test_vllm_has_bounds_at_every_length():
    arms: dict[str, Any] = {FULL: {}, claa(0.1): {}}
    ratios = {FULL: {"median": 0.99}, claa(0.1): {"median": 0.56}}
    for tokens in (10_000, 32_768, 65_536):
        found = bounds(tokens, {"arms": arms, "ratio_to_vllm": ratios})
        assert found == {
            "full over vllm": {"value": 0.99, "at_most": 1.0, "met": True},
            "claa 10 % over vllm": {"value": 0.56, "at_most": 0.55, "met": False},
        }


def test_the_child_is_this_python():
    peer = VllmPeer(SETTINGS, command=[sys.executable, "-c", 'print(\'{"vllm": "x"}\')'])
    assert peer.facts == {"vllm": "x"}
    peer.close()
