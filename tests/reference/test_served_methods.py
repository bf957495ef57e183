"""What a worker's runner makes of every method it serves equals what evaluations make of it."""

from dataclasses import replace

import pytest
import torch

from prefill_service.engine.evaluate import rank_and_prefill
from prefill_service.engine.inspect import capture_prefill
from shared.kv.slab_layout import SlabLayout
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams

TOKENS = 110
BASE = PruningParams(
    pruning_layer=3, deferred_layers=2, aggregation_window=2, keep_rate=0.4, seed=9
)
SERVED = ["claa", "fastkv", "full", "random", "recency", "snapkv"]


def prompt() -> list[int]:
    return torch.randint(3, 512, (TOKENS,), generator=torch.Generator().manual_seed(6)).tolist()


def assert_served_as_evaluated(model: Transformer, params: PruningParams) -> None:
    attention = TorchAttention()
    served = capture_prefill(
        model, attention=attention, token_ids=prompt(), params=params, chunk_tokens=32
    )
    ours = rank_and_prefill(model, attention=attention, token_ids=prompt(), params=params)
    assert torch.equal(served.output.kept_N, ours.kept_N)
    torch.testing.assert_close(served.output.logits_V, ours.logits_V, atol=1e-4, rtol=0)
    for layer, cache in enumerate(ours.layer_kv):
        positions_RN = served.kv.layer_positions(layer)
        assert torch.equal(positions_RN.expand_as(cache.positions_RN), cache.positions_RN), layer
        keys_NGD, values_NGD = served.kv.layer(layer)
        torch.testing.assert_close(keys_NGD, cache.keys_NGD, atol=1e-4, rtol=0)
        torch.testing.assert_close(values_NGD, cache.values_NGD, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kv_rate", [None, 0.2, 0.4])
@pytest.mark.parametrize("name", SERVED)
def test_every_served_method(
    tiny_model: Transformer, name: str, kv_rate: float | None, kv_select: KvSelect
) -> None:
    assert_served_as_evaluated(
        tiny_model, replace(BASE, ranker=name, kv_rate=kv_rate, kv_select=kv_select)
    )


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("keep_rate", [0.5, 1.0])
@pytest.mark.parametrize("lp", [0, 1, 4, 5])
def test_smaller_caches_at_every_depth(
    tiny_model: Transformer, lp: int, keep_rate: float, kv_select: KvSelect
) -> None:
    assert_served_as_evaluated(
        tiny_model,
        replace(BASE, pruning_layer=lp, keep_rate=keep_rate, kv_rate=0.15, kv_select=kv_select),
    )


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_the_decode_side_lays_smaller_caches_out_alike(
    tiny_model: Transformer, kv_select: KvSelect
) -> None:
    params = replace(BASE, kv_rate=0.2, kv_select=kv_select)
    plan = capture_prefill(
        tiny_model,
        attention=TorchAttention(),
        token_ids=prompt(),
        params=params,
        chunk_tokens=32,
    ).plan
    assert (plan.summary.kept_tokens, plan.summary.kv_tokens) == (44, 22)
    again = SlabLayout.plan(
        tiny_model.geometry(),
        prompt_tokens=TOKENS,
        kept_tokens=plan.summary.slots,
        whole_layers=2,
        pruning_layer=plan.summary.last_choosing_layer(6),
        kv_select=kv_select,
        pruned=True,
    )
    assert again == plan.slab
