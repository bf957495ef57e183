"""Both benches beside one engine of vLLM: what it is started with, and what is refused."""

from typing import Any

import pytest
import torch

from loadtest.micro import peer_run
from loadtest.micro.pass_plan import PassPlan
from loadtest.micro.peer_run import one_engine, run_both
from loadtest.micro.step_shapes import CASES
from shared.errors import ConfigError, InternalError

CUDA = torch.device("cuda")


def run(**changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "only": "1 x 32768",
        "step_repeats": 1,
        "device": CUDA,
        "progress": print,
    }
    return run_both(PassPlan(tokens=(10_000, 65_536)), **(given | changed))


def test_one_engine_has_room_for_prompts_and_batches():
    cases = {name: case for name, case in CASES.items() if "llama" in name}
    settings = one_engine(PassPlan(tokens=(10_000, 65_536)), cases)
    assert settings.step_tokens >= 65_536
    assert settings.max_tokens >= 65_536
    assert settings.kv_tokens >= 16 * 32_768
    assert settings.graph_sizes == (1, 16)
    assert one_engine(PassPlan(tokens=(10_000,)), {}).kv_tokens < 16_384


def test_what_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="on a GPU alone"):
        run(device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"names r1-qwen-1\.5b 64 x 18432, not cases of llama"):
        run(only="18432")
    with pytest.raises(ConfigError, match="names no case"):
        run(only="gpt")


class Engine:
    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.ended = 0

    def close(self) -> None:
        self.ended += 1


def test_both_get_the_same_engine_which_ends(monkeypatch: pytest.MonkeyPatch):
    engines: list[Engine] = []

    def start(settings: Any) -> Engine:
        engines.append(Engine(settings))
        return engines[-1]

    def prompts(plan: PassPlan, *, vllm: Any, **_: Any) -> dict[str, Any]:
        return {"tokens": plan.tokens, "engine": vllm}

    def steps(*, only: str, vllm: Any, peer: str, **_: Any) -> dict[str, Any]:
        return {"only": only, "engine": vllm, "peer": peer}

    monkeypatch.setattr(peer_run, "why_no_vllm", lambda: None)
    monkeypatch.setattr(peer_run, "VllmPeer", start)
    monkeypatch.setattr(peer_run, "bench_pass", prompts)
    monkeypatch.setattr(peer_run, "bench_steps", steps)
    found = run()
    (engine,) = engines
    assert found == {
        "prefill": {"tokens": (10_000, 65_536), "engine": engine},
        "decode": {"only": "1 x 32768", "engine": engine, "peer": "vllm"},
    }
    assert engine.ended == 1
    assert set(run(only="")) == {"prefill"}

    def wrong(*_: Any, **__: Any) -> dict[str, Any]:
        raise InternalError("wrong on this device")

    monkeypatch.setattr(peer_run, "bench_pass", wrong)
    with pytest.raises(InternalError):
        run()
    assert [each.ended for each in engines] == [1, 1, 1]
    monkeypatch.setattr(peer_run, "why_no_vllm", lambda: "not installed")
    monkeypatch.setattr(peer_run, "bench_pass", prompts)
    assert run()["prefill"]["engine"] is None
