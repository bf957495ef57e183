"""The bench of a prompt's pass: what it compares without a GPU, and that a wrong path stops it."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from loadtest.micro import prefill_pass as bench
from loadtest.micro.models import WeightSpread, random_on_device
from loadtest.micro.pass_arms import FULL, Timed, claa, our_arms, summary, take_turns
from loadtest.micro.pass_bounds import bounds
from loadtest.micro.pass_parity import PASS_CASES, check_choice, check_pass
from loadtest.micro.pass_peer import PEER_KERNELS, TransformersPass
from loadtest.micro.pass_plan import PassPlan
from loadtest.micro.prefill_pass import bench_pass, parity
from loadtest.micro.turns import balanced_turns
from prefill_service.kernels import keep_highest as selection
from shared.errors import ConfigError, InternalError
from shared.model.attention import TorchAttention
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.plain_attention import PlainKernel
from shared.model.probe import AttentionChoice, Rejection
from shared.model.profile import load_profile
from shared.model.random import random_config
from shared.model.shapes import MODEL_SHAPES
from shared.types.methods import PruningParams
from tests.support.kernel_rows import DEVICE
from tests.support.tiny_model import make_tiny_model

CPU = torch.device("cpu")
SMALL = replace(
    PASS_CASES[0], group=2, kv_heads=1, head_dim=16, tokens=45, chunk_tokens=32, pruning_layer=2
)


def choice_of(kernel: PlainKernel) -> AttentionChoice:
    ranges = (KernelRange(up_to=None, kernel=kernel),)
    return AttentionChoice(backend=DeviceAttention(ranges), rejected=())


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU times whole models")
def test_without_a_gpu_it_compares_and_gives_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadtest.micro.prefill_pass.PASS_CASES", (SMALL,))
    lines: list[str] = []
    result = bench_pass(PassPlan(), device=CPU, progress=lines.append)
    assert lines == [f"parity {SMALL.label}"]
    (found,) = result["parity"].values()
    assert max(found["ours"].values()) < 1e-4
    assert found["score_held"] == pytest.approx(1.0)
    assert "tokens" not in result
    assert json.loads(json.dumps(result)) == result


def test_a_shape_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"no model shape .gpt-2.; choose one of llama-3\.1-8b"):
        bench_pass(PassPlan(shape="gpt-2"), device=CPU, progress=lambda _: None)


class Wrong(PlainKernel):
    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        out, lse = PlainKernel.attend(self, q_PHD, k_PGD, v_PGD, want_lse=want_lse)
        return out * 1.1, lse


def test_a_wrong_path_stops_it():
    with pytest.raises(InternalError, match=r"off float32.*the CUDA path is wrong on this device"):
        check_pass(SMALL, choice=choice_of(Wrong()), device=DEVICE, dtype=torch.float32)


def test_a_bad_choice_stops_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadtest.micro.pass_parity._SCORE_SHARE", 1.1)
    with pytest.raises(InternalError, match="the CUDA path chooses wrongly"):
        check_pass(SMALL, choice=choice_of(PlainKernel()), device=DEVICE, dtype=torch.float32)


def test_a_wrong_selection_stops_it(monkeypatch: pytest.MonkeyPatch):
    check_choice(rows=2, candidates=60, kept=20, device=DEVICE)

    def last(scores_RC: Tensor, **rules: Any) -> Tensor:
        return selection.keep_highest(scores_RC.flip(1), **rules)

    monkeypatch.setattr("loadtest.micro.pass_parity.keep_highest", last)
    with pytest.raises(InternalError, match="the selection kernel is wrong on this device"):
        check_choice(rows=2, candidates=60, kept=20, device=DEVICE)


def test_parity_cases_cover_what_the_kernels_tell_apart():
    assert {case.group for case in PASS_CASES} == {1, 2, 3, 4, 5, 6, 7, 8}
    assert {case.head_dim for case in PASS_CASES} == {32, 64, 128, 256}
    assert {case.family for case in PASS_CASES} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {case.pruning_layer for case in PASS_CASES} >= {0, 5}
    assert any(case.keep_rate == 1.0 for case in PASS_CASES)
    assert any(case.tokens > case.chunk_tokens for case in PASS_CASES)
    assert callable(parity)


@pytest.mark.parametrize("name", [name for name in MODEL_SHAPES if name != "tiny"])
def test_shapes_have_a_shipped_profile(name: str):
    profile = load_profile(config=MODEL_SHAPES[name])
    assert profile.pruning.pruning_layer < MODEL_SHAPES[name].num_layers


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_peer_shares_weights_and_agrees(family: str):
    model = random_on_device(random_config(family), device=CPU, dtype=torch.float32, seed=3)
    peer = TransformersPass(model)
    ids = list(range(3, 60))
    logits_V, cache = peer.run(torch.tensor(ids))
    (arm,) = our_arms(
        model,
        attention=TorchAttention(),
        params=PruningParams(pruning_layer=2),
        keep=(),
        chunk_tokens=32,
    ).values()
    torch.testing.assert_close(arm(ids).output.logits_V, logits_V, atol=1e-4, rtol=1e-4)
    assert cache.get_seq_length() == len(ids)
    model.layers[0].weights.down.zero_()
    changed_V, _ = peer.run(torch.tensor(ids))
    assert not torch.equal(changed_V, logits_V)


def test_arms_take_turns_and_tell_what_they_kept():
    arms = our_arms(
        make_tiny_model(),
        attention=TorchAttention(),
        params=PruningParams(pruning_layer=2, bypass_below=1000),
        keep=(0.2, 0.4),
        chunk_tokens=64,
    )
    assert list(arms) == [FULL, "claa 20 %", "claa 40 %"]
    timed = take_turns(arms, list(range(3, 103)), repeats=2, device=CPU)
    found = summary(timed)
    assert [len(arm["runs"]) for arm in found["arms"].values()] == [2, 2, 2]
    assert [arm["kept_tokens"] for arm in found["arms"].values()] == [100, 20, 40]
    assert "select_share" not in found["arms"][FULL]
    assert 0 < found["arms"]["claa 20 %"]["select_share"]["median"] < 1
    assert set(found["ratio_to_full"]) == {"claa 20 %", "claa 40 %"}
    assert json.loads(json.dumps(found)) == found


def test_neighbours_change():
    order: list[str] = []
    arms: dict[str, Any] = {name: lambda _, name=name: order.append(name) for name in "abcd"}
    timed = take_turns(arms, [3], repeats=4, device=CPU)
    assert "".join(order) == "abdc" + "bcad" + "cdba" + "dacb" + "abdc"
    assert [len(each.seconds) for each in timed.values()] == [4, 4, 4, 4]


@pytest.mark.parametrize("count", range(1, 9))
def test_each_arm_comes_after_every_other_equally_often(count: int):
    turns = balanced_turns(count)
    assert all(sorted(row) == list(range(count)) for row in turns)
    after = Counter(pair for row in turns for pair in pairwise(row))
    assert set(after) == set(permutations(range(count), 2))
    assert len(set(after.values())) <= 1


def test_bounds_say_what_was_met():
    timed = {
        "transformers (cudnn)": Timed(seconds=[1.0, 1.0]),
        FULL: Timed(seconds=[0.84, 0.8]),
        claa(0.1): Timed(seconds=[0.46, 0.44], select_seconds=[0.002, 0.002]),
        claa(0.4): Timed(seconds=[0.7, 0.6]),
    }
    found = bounds(10_000, summary(timed))
    assert {name: bound["met"] for name, bound in found.items()} == {
        "full over transformers (cudnn)": True,
        "claa 10 % over full": False,
        "claa 40 % over full": False,
        "scoring and selection over claa 10 %": True,
    }
    assert found["full over transformers (cudnn)"]["value"] == pytest.approx(0.82)
    assert bounds(12_345, summary(timed)) == {}


@pytest.mark.skipif(DEVICE.type == "cuda", reason="stands for a GPU")
def test_a_whole_run(monkeypatch: pytest.MonkeyPatch):
    """All but the device itself: a tiny model, both peers, two lengths."""
    shape = replace(random_config("llama", num_layers=3), tie_embeddings=False)
    ranges = (KernelRange(up_to=None, kernel=PlainKernel()),)
    probed = AttentionChoice(
        backend=DeviceAttention(ranges),
        rejected=(Rejection("cudnn", "no device"),),
        seconds={"plain": {1024: 1.0}},
    )
    params = PruningParams(pruning_layer=1, deferred_layers=1, aggregation_window=1)
    monkeypatch.setattr(bench, "MODEL_SHAPES", {"tiny": shape})
    monkeypatch.setattr(bench, "probe_attention", lambda *_, **__: probed)
    monkeypatch.setattr(bench, "load_profile", lambda **_: SimpleNamespace(pruning=params))
    monkeypatch.setattr(bench, "_LONG", 30)
    for name in PEER_KERNELS:
        monkeypatch.setitem(PEER_KERNELS, name, SDPBackend.MATH)
    lines: list[str] = []
    plan = PassPlan(
        shape="tiny", tokens=(20, 40), keep=(0.5, 0.8), long_keep=(0.8,), repeats=(2, 1)
    )
    found = bench._timed(plan, device=CPU, progress=lines.append)
    assert found["peers"]["transformers"]["parity"]["logits"] < bench._PEER_DIFFERENCE
    assert found["peers"]["vllm"]["reason"] == "vllm is not installed for this Python"
    peers = list(PEER_KERNELS)
    assert list(found["tokens"]["20"]["arms"]) == [FULL, "claa 50 %", "claa 80 %", *peers]
    assert list(found["tokens"]["40"]["arms"]) == [FULL, "claa 80 %", *peers]
    assert [len(at["arms"][FULL]["runs"]) for at in found["tokens"].values()] == [2, 1]
    assert found["attention"]["rejected"] == {"cudnn": "no device"}
    assert json.loads(lines[-1])["tokens"] == 40
    bench._print({"parity": {}, **found, "device": "a", "torch": "b", "triton": "c"})


def test_weights_may_be_spread_as_vllm_spreads_them():
    config = random_config()
    uniform, normal = (
        random_on_device(config, device=CPU, dtype=torch.float32, spread=spread)
        for spread in (WeightSpread.UNIFORM, WeightSpread.NORMAL)
    )
    for drawn in (uniform.layers[0].weights.down, uniform.norm_E, uniform.embedding_VE):
        assert 0.9e-3 < float(drawn.abs().max()) <= 1e-3
    assert float(normal.layers[0].weights.down.abs().max()) > 0.1


def test_repeats_follow_the_prompts():
    assert PassPlan().schedule == ((10_000, 10), (32_768, 10), (65_536, 4))
    assert PassPlan(repeats=(3,)).schedule == ((10_000, 3), (32_768, 3), (65_536, 3))
    assert PassPlan(tokens=(100,), repeats=(7, 5)).schedule == ((100, 7),)


@pytest.mark.parametrize("wrong", [{"cases": 0}, {"repeats": (0,)}, {"peer": ("sglang",)}])
def test_a_plan_that_measures_nothing_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match="cases and repeats at least 1"):
        bench_pass(PassPlan(**wrong), device=CPU, progress=lambda _: None)
