"""The runner against the slow twin: modes, edge sizes, chunkings."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import Aggregation, KvSelect, PruningParams
from tests.reference.claa_twin import SlowLlama, TwinResult, twin_prefill


@pytest.fixture(scope="module")
def slow_model(tiny_model_dir: Path) -> SlowLlama:
    return SlowLlama(tiny_model_dir)


def prompt(num_tokens: int, *, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + num_tokens)
    return torch.randint(3, 512, (num_tokens,), generator=generator).tolist()


def captured(
    model: Transformer, token_ids: list[int], params: PruningParams, *, chunk: int = 32
) -> CapturedPrefill:
    return capture_prefill(
        model,
        attention=TorchAttention(),
        token_ids=token_ids,
        params=params,
        chunk_tokens=chunk,
    )


def assert_equal_to_twin(ours: CapturedPrefill, twin: TwinResult) -> None:
    assert ours.output.kept_N.tolist() == twin.kept
    for layer, rows in twin.layer_positions.items():
        assert ours.kv.layer_positions(layer).tolist() == rows, f"layer {layer}"
        keys, values = ours.kv.layer(layer)
        torch.testing.assert_close(keys.double(), twin.keys[layer], atol=1e-4, rtol=0)
        torch.testing.assert_close(values.double(), twin.values[layer], atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.output.logits_V.double(), twin.logits, atol=1e-4, rtol=0)


BASE = PruningParams(
    pruning_layer=3, aggregation_window=3, deferred_layers=2, keep_rate=0.25, min_keep=0
)


@pytest.mark.parametrize("protect_first", [True, False], ids=["protected", "unprotected"])
@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda mode: mode.value)
def test_every_mode(
    tiny_model: Transformer,
    slow_model: SlowLlama,
    aggregation: Aggregation,
    kv_select: KvSelect,
    protect_first: bool,
) -> None:
    params = replace(
        BASE, aggregation=aggregation, kv_select=kv_select, protect_first=protect_first
    )
    ids = prompt(75)
    assert_equal_to_twin(captured(tiny_model, ids, params), twin_prefill(slow_model, ids, params))


@dataclass(frozen=True)
class Edge:
    name: str
    tokens: int
    params: PruningParams
    chunk: int = 32


EDGES = [
    Edge("last_layer_prunes", 60, replace(BASE, pruning_layer=5)),
    Edge("first_layer_prunes", 60, replace(BASE, pruning_layer=0)),
    Edge("first_layer_prunes_nothing_whole", 60, replace(BASE, pruning_layer=0, deferred_layers=0)),
    Edge("one_layer_after", 60, replace(BASE, pruning_layer=4)),
    Edge("pruning_before_deferral_ends", 60, replace(BASE, pruning_layer=1, deferred_layers=4)),
    Edge("pruning_at_last_deferred", 60, replace(BASE, pruning_layer=1, deferred_layers=2)),
    Edge("deferral_beyond_the_model", 60, replace(BASE, pruning_layer=5, deferred_layers=9)),
    Edge("nothing_whole", 60, replace(BASE, deferred_layers=0)),
    Edge("one_layer_aggregated", 60, replace(BASE, aggregation_window=1)),
    Edge("more_layers_aggregated_than_there_are", 60, replace(BASE, aggregation_window=40)),
    Edge("one_token", 1, BASE),
    Edge("shorter_than_the_window", 5, BASE),
    Edge("as_long_as_the_window", 8, BASE),
    Edge("window_and_one", 9, BASE),
    Edge("window_and_two", 10, BASE),
    Edge("pool_wider_than_candidates", 11, replace(BASE, pool_kernel=9)),
    Edge("window_of_one", 40, replace(BASE, observation_window=1)),
    Edge("wide_window", 60, replace(BASE, observation_window=30, keep_rate=0.6)),
    Edge("no_pool", 40, replace(BASE, pool_kernel=1)),
    Edge("floor", 60, replace(BASE, min_keep=33)),
    Edge("floor_above_prompt", 60, replace(BASE, min_keep=100)),
    Edge("rate_below_window", 60, replace(BASE, keep_rate=0.01)),
    Edge("keep_all", 60, replace(BASE, keep_rate=1.0)),
    Edge("all_but_one", 40, replace(BASE, keep_rate=0.99)),
    Edge("one_block", 60, BASE, chunk=1000),
    Edge("exact_blocks", 64, BASE, chunk=32),
    Edge("one_token_over", 65, BASE, chunk=32),
    Edge("window_over_a_border", 68, BASE, chunk=32),
    Edge("window_over_many_borders", 41, BASE, chunk=3),
    Edge("blocks_of_one", 30, BASE, chunk=1),
]


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
def test_edges(
    tiny_model: Transformer, slow_model: SlowLlama, edge: Edge, kv_select: KvSelect
) -> None:
    params = replace(edge.params, kv_select=kv_select)
    ids = prompt(edge.tokens, seed=1)
    ours = captured(tiny_model, ids, params, chunk=edge.chunk)
    assert_equal_to_twin(ours, twin_prefill(slow_model, ids, params))


@pytest.mark.parametrize("chunk", [1, 7, 50, 64, 299, 300, 301, 4096])
@pytest.mark.parametrize("keep_rate", [0.2, 1.0])
def test_chunked_equals_unchunked(tiny_model: Transformer, chunk: int, keep_rate: float) -> None:
    ids = prompt(300)
    params = replace(BASE, keep_rate=keep_rate, kv_select=KvSelect.HEAD)
    whole = captured(tiny_model, ids, params, chunk=300)
    parts = captured(tiny_model, ids, params, chunk=chunk)
    assert parts.output.kept_N.tolist() == whole.output.kept_N.tolist()
    torch.testing.assert_close(parts.output.logits_V, whole.output.logits_V, atol=1e-4, rtol=0)
    for layer in range(tiny_model.config.num_layers):
        assert torch.equal(parts.kv.layer_positions(layer), whole.kv.layer_positions(layer))
        for ours, theirs in zip(parts.kv.layer(layer), whole.kv.layer(layer), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
