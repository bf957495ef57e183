"""The bench of packs: what it compares without a GPU, and how a crowd is cut into passes."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtest.micro import prefill_pack as bench
from loadtest.micro.pack_parity import check_packs
from loadtest.micro.pass_parity import PASS_CASES
from loadtest.micro.prefill_pack import CrowdArm, CrowdPlan, arm_name, bench_packs, summary
from prefill_service.engine.batcher import PackLimits
from prefill_service.engine.packed_pass import PackedPass
from prefill_service.engine.runner import PrefillRunner
from shared.errors import ConfigError, InternalError
from shared.model.attention import TorchAttention
from shared.model.random import random_config
from shared.types.methods import PruningParams
from tests.support.kernel_rows import DEVICE
from tests.support.tiny_model import make_tiny_model

CPU = torch.device("cpu")
SMALL = replace(
    PASS_CASES[0], group=2, kv_heads=1, head_dim=16, tokens=45, chunk_tokens=32, pruning_layer=2
)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU times whole models")
def test_without_a_gpu_it_compares_and_gives_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PASS_CASES", (SMALL,))
    lines: list[str] = []
    result = bench_packs(CrowdPlan(), device=CPU, progress=lines.append)
    assert lines == [f"parity of packs {SMALL.label}: plain"]
    (found,) = result["parity"].values()
    assert max(found["packed"].values()) < 1e-4
    assert found["same_token"] == found["prompts"] == 6
    assert "crowds" not in result
    assert json.loads(json.dumps(result)) == result


def test_company_that_changes_a_prompt_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = PackedPass.forward

    def mixed(self: PackedPass, ids: dict[Any, torch.Tensor]) -> tuple[list[Any], torch.Tensor]:
        prompts, logits_MV = forward(self, ids)
        return prompts, logits_MV + (0.5 if len(prompts) > 1 else 0.0)

    monkeypatch.setattr(PackedPass, "forward", mixed)
    with pytest.raises(InternalError, match=r"logits of a prompt of 45 tokens .* among others"):
        check_packs(SMALL, attention=TorchAttention(), device=CPU, dtype=torch.float32)


def test_a_crowd_is_cut_as_the_engine_cuts_it() -> None:
    model = make_tiny_model()
    packs: list[int] = []

    class Counted(PrefillRunner):
        def run_pack(self, prompts: Any, **how: Any) -> Any:
            packs.append(len(prompts))
            return super().run_pack(prompts, **how)

    arm = CrowdArm(
        runner=Counted(model, attention=TorchAttention()),
        model=model,
        params=PruningParams(pruning_layer=2, deferred_layers=1, keep_rate=0.5),
        limits=PackLimits(tokens=40, prompts=3),
    )
    ends = arm([[5] * n for n in (10, 20, 10, 1, 50, 9, 9, 9, 9)])
    assert packs == [3, 1, 1, 3, 1]
    assert len(ends) == 9
    assert ends == sorted(ends)
    assert len(set(ends)) == len(packs)


def test_the_summary_compares_with_one_by_one() -> None:
    runs = {
        arm_name(1.0, 0): [[1.0, 2.0], [2.0, 4.0]],
        arm_name(1.0, 4096): [[1.0, 1.0], [1.0, 1.0]],
    }
    found = summary(runs, prompts=2)
    assert list(found) == ["full, alone", "full, packs of 4096"]
    assert found["full, alone"]["prompts_per_second"] == {"median": 0.75, "min": 0.5, "max": 1.0}
    assert found["full, packs of 4096"]["ratio_to_alone"]["max"] == 0.5
    assert found["full, alone"]["mean_first_token"]["median"] == 2.25
    assert arm_name(0.2, 8192) == "claa 20 %, packs of 8192"


def test_the_command_runs_what_its_flags_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[CrowdPlan] = []

    def run(plan: CrowdPlan, **_how: Any) -> dict[str, Any]:
        plans.append(plan)
        return {"parity": {}, "device": "a", "torch": "b", "triton": "c"}

    monkeypatch.setattr(bench, "bench_packs", run)
    bench.main(["--pack", "3x20,2x9", "--keep", "0.5", "--pack-tokens", "40,80", "--json"])
    bench.main(["--pack-prompts", "2", "--repeats", "1", "--cases", "1", "--chunk-tokens", "64"])
    assert plans == [
        CrowdPlan(crowds=((3, 20), (2, 9)), keep=(0.5,), pack_tokens=(40, 80)),
        CrowdPlan(pack_prompts=2, repeats=1, cases=1, chunk_tokens=64),
    ]
    with pytest.raises(SystemExit):
        bench.main(["--keep", "most"])
    printed = capsys.readouterr()
    assert "argument --keep: invalid" in printed.err
    first, second = printed.out.splitlines()
    assert json.loads(first)["parity"] == {}
    assert second == "a, torch b, triton c"


@pytest.mark.parametrize("wrong", [{"shape": "gpt-2"}, {"cases": 0}, {"repeats": 0}])
def test_a_plan_that_measures_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"at least 1|choose one of llama"):
        bench_packs(CrowdPlan(**wrong), device=CPU, progress=lambda _: None)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="stands for a GPU")
def test_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the device itself: a tiny model, two crowds."""
    shape = replace(random_config("llama", num_layers=3), tie_embeddings=False)
    params = PruningParams(pruning_layer=1, deferred_layers=1, aggregation_window=1)
    monkeypatch.setattr(bench, "MODEL_SHAPES", {"tiny": shape})
    monkeypatch.setattr(bench, "load_profile", lambda **_: SimpleNamespace(pruning=params))
    lines: list[str] = []
    plan = CrowdPlan(
        shape="tiny", crowds=((3, 20), (2, 9)), keep=(1.0, 0.5), pack_tokens=(40,), repeats=2
    )
    found = bench._timed(plan, device=CPU, progress=lines.append)
    arms = ["full, alone", "full, packs of 40", "claa 50 %, alone", "claa 50 %, packs of 40"]
    assert [list(at) for at in found["crowds"].values()] == [arms, arms]
    assert [len(at[arms[1]]["runs"]) for at in found["crowds"].values()] == [2, 2]
    assert list(json.loads(lines[-1])) == ["2x9"]
    bench._print({"parity": {}, **found, "device": "a", "torch": "b", "triton": "c"})
