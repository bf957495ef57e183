"""The CUDA path of the runner, kernels under Triton's interpreter, against the PyTorch path."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from prefill_service.engine.plan import plan_prompt
from prefill_service.engine.runner import PrefillRunner
from shared.errors import CancelledError
from shared.model.attention import PrefillAttention, TorchAttention
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.plain_attention import PlainKernel
from shared.model.random import random_config, random_model
from shared.model.transformer import Transformer
from shared.types.methods import Aggregation, KvSelect, PruningParams
from shared.types.options import RequestOptions, TokenRange
from tests.support.kernel_rows import DEVICE

PARAMS = PruningParams(
    pruning_layer=1,
    deferred_layers=1,
    aggregation_window=2,
    keep_rate=0.4,
    observation_window=4,
    pool_kernel=3,
    aggregation=Aggregation.SUM_MAX,
    kv_select=KvSelect.HEAD,
)
NO_OPTIONS = RequestOptions()


def fused(*, step: int = 16) -> DeviceAttention:
    return DeviceAttention((KernelRange(up_to=None, kernel=PlainKernel(step)),))


def small(
    family: str = "llama", *, group: int = 2, kv_heads: int = 2, layers: int = 3, head_dim: int = 16
) -> Transformer:
    heads = group * kv_heads
    config = random_config(
        family,
        num_layers=layers,
        hidden_size=48,
        num_heads=heads,
        num_kv_heads=kv_heads,
    )
    return random_model(replace(config, head_dim=head_dim), seed=5, device=str(DEVICE))


def run(
    model: Transformer,
    tokens: int,
    params: PruningParams,
    *,
    attention: PrefillAttention,
    chunk: int = 1 << 20,
    options: RequestOptions = NO_OPTIONS,
) -> CapturedPrefill:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(3, 512, (tokens,), generator=generator).tolist()
    return capture_prefill(
        model,
        attention=attention,
        token_ids=ids,
        params=params,
        chunk_tokens=chunk,
        options=options,
    )


def assert_same(ours: CapturedPrefill, wanted: CapturedPrefill) -> None:
    assert ours.plan == wanted.plan
    assert ours.output.kept_N.tolist() == wanted.output.kept_N.tolist()
    torch.testing.assert_close(ours.output.logits_V, wanted.output.logits_V, atol=2e-5, rtol=1e-4)
    for layer in range(ours.plan.geometry.num_layers):
        assert torch.equal(ours.kv.layer_positions(layer), wanted.kv.layer_positions(layer))
        for got, other in zip(ours.kv.layer(layer), wanted.kv.layer(layer), strict=True):
            assert got.is_contiguous()
            torch.testing.assert_close(got, other, atol=2e-5, rtol=1e-4)


def assert_equal_paths(
    model: Transformer, tokens: int, params: PruningParams, **how: Any
) -> CapturedPrefill:
    ours = run(model, tokens, params, attention=fused(), **how)
    assert_same(ours, run(model, tokens, params, attention=TorchAttention(), **how))
    return ours


@pytest.mark.parametrize("lp", [0, 1, 2])
@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_every_pruning_layer_and_selection(lp: int, kv_select: KvSelect):
    params = replace(PARAMS, pruning_layer=lp, kv_select=kv_select)
    ran = assert_equal_paths(small(), 25, params)
    assert ran.plan.summary.pruned
    assert ran.output.kept_N.shape == (10,)
    assert ran.output.select_seconds > 0


@pytest.mark.parametrize(
    ("tokens", "chunk"),
    [
        pytest.param(5, 1 << 20, id="nothing but the window and one candidate"),
        pytest.param(16, 16, id="one block, nothing padded"),
        pytest.param(17, 16, id="a block of one token"),
        pytest.param(32, 7, id="blocks that cut the window"),
        pytest.param(13, 1, id="a block a token"),
    ],
)
def test_lengths_and_blocks(tokens: int, chunk: int):
    keep_rate = 1.0 if tokens == 5 else PARAMS.keep_rate
    assert_equal_paths(small(), tokens, replace(PARAMS, keep_rate=keep_rate), chunk=chunk)


@pytest.mark.parametrize(
    ("family", "group", "kv_heads", "head_dim"),
    [
        ("llama", 1, 3, 16),
        ("llama", 3, 3, 64),
        ("mistral", 4, 1, 32),
        ("qwen2", 7, 1, 16),
        ("qwen3", 2, 2, 32),
        ("llama", 8, 1, 16),
    ],
)
def test_families_and_heads(family: str, group: int, kv_heads: int, head_dim: int):
    model = small(family, group=group, kv_heads=kv_heads, layers=2, head_dim=head_dim)
    assert_equal_paths(model, 26, replace(PARAMS, pruning_layer=0))


@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda mode: mode.value)
def test_aggregations(aggregation: Aggregation):
    assert_equal_paths(small(), 24, replace(PARAMS, aggregation=aggregation))


@pytest.mark.parametrize("ranker", ["fastkv", "snapkv", "recency"])
def test_other_methods(ranker: str):
    assert_equal_paths(small(), 24, replace(PARAMS, ranker=ranker))


def test_rates_of_sequence_and_caches_apart():
    params = replace(PARAMS, ranker="fastkv", keep_rate=0.6, kv_rate=0.3)
    assert_equal_paths(small(), 25, params)


@pytest.mark.parametrize("kv_select", [KvSelect.HEAD, KvSelect.SHARED], ids=["head", "shared"])
def test_a_mass_sets_the_count(kv_select: KvSelect):
    params = replace(PARAMS, mass=0.5, min_rate=0.3, max_rate=0.8, kv_select=kv_select)
    ran = assert_equal_paths(small(), 25, params)
    assert ran.plan.summary.kept_tokens < 20


def test_protected_tokens():
    options = RequestOptions(protect=(TokenRange(3, 5), TokenRange(17, 18)))
    ran = assert_equal_paths(small(), 25, PARAMS, options=options)
    assert {3, 4, 17} <= set(ran.output.kept_N.tolist())


def test_a_window_of_more_rows_than_the_kernel_holds():
    model = small(group=8, kv_heads=1, layers=2)
    params = replace(PARAMS, pruning_layer=0, observation_window=33)
    assert_equal_paths(model, 50, replace(params, keep_rate=0.8))


def test_keep_all_equals_a_pruning_that_keeps_all():
    """The dense pass, and one whose pruning layer drops nothing, take different ways."""
    model = small()
    dense = assert_equal_paths(model, 29, replace(PARAMS, keep_rate=1.0))
    assert not dense.plan.summary.pruned
    almost = run(model, 29, replace(PARAMS, keep_rate=0.97, pruning_layer=2), attention=fused())
    assert almost.output.kept_N.shape == (28,)
    for layer in range(2):
        for got, wanted in zip(almost.kv.layer(layer), dense.kv.layer(layer), strict=True):
            if layer == 0:
                assert torch.equal(got, wanted)


def test_padding_changes_nothing():
    model = small()
    some, more = (run(model, 33, PARAMS, attention=fused(step=step)) for step in (1, 64))
    assert_same(some, more)


def test_the_log_sum_exp_of_attention_is_what_scores_use():
    class Shifted(PlainKernel):
        def attend(self, q_PHD, k_PGD, v_PGD, *, want_lse):
            out, lse = PlainKernel.attend(self, q_PHD, k_PGD, v_PGD, want_lse=want_lse)
            return out, None if lse is None else lse + torch.log(torch.tensor(2.0))

    model = small(layers=2)
    params = replace(PARAMS, pruning_layer=1, aggregation_window=1, keep_rate=0.5)
    shifted = DeviceAttention((KernelRange(up_to=None, kernel=Shifted()),))
    ours = run(model, 21, params, attention=shifted)
    wanted = run(model, 21, params, attention=TorchAttention())
    # Half the mass everywhere chooses the same tokens; the pruning layer has no attention to ask.
    assert_same(ours, wanted)
    torch.testing.assert_close(ours.output.scores_C, wanted.output.scores_C, atol=1e-5, rtol=1e-4)
    summed = replace(params, aggregation_window=2)
    doubled = run(model, 21, summed, attention=shifted).output.scores_C
    plain = run(model, 21, summed, attention=fused()).output.scores_C
    assert doubled is not None
    assert plain is not None
    assert not torch.allclose(doubled, plain)


@pytest.mark.parametrize("keep_rate", [0.4, 1.0])
def test_stops_at_every_look(keep_rate: float):
    model, params = small(layers=2), replace(PARAMS, keep_rate=keep_rate)
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=NO_OPTIONS,
        prompt_tokens=20,
    )
    runner = PrefillRunner(model, attention=fused(), chunk_tokens=16)

    def looks_until(stop_at: int) -> int:
        seen = 0

        def stop() -> bool:
            nonlocal seen
            seen += 1
            return seen >= stop_at

        with pytest.raises(CancelledError):
            runner.run(token_ids=[7] * 20, plan=plan, observer=CapturedKv(plan), stop=stop)
        return seen

    assert [looks_until(n) for n in range(1, 7)] == [1, 2, 3, 4, 5, 6]
