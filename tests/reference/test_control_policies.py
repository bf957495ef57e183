"""Policies without state against their slow twins."""

import pytest
import torch

from decode_service.sparsity.oracle_topk import OracleTopkPolicy
from decode_service.sparsity.recency import RecencyPolicy
from decode_service.sparsity.streaming import StreamingPolicy
from shared.types.methods import SparsityParams
from tests.reference.control_twins import oracle_pages, recent_pages, streaming_pages
from tests.support.sparse_steps import draw_inputs, mixed_facts, plain_facts, run_step

LAYERS = 6
PARAMS = SparsityParams(full_layers=(0, 1), page_budget=6, recency_pages=2)


@pytest.mark.parametrize("length", [97, 111, 112, 113, 320])
def test_streaming_reads_what_its_twin_reads_in_every_layer(length: int) -> None:
    facts = plain_facts(length - 5, num_layers=LAYERS)
    row = StreamingPolicy(PARAMS, num_layers=LAYERS).begin(facts)
    done = run_step(row, draw_inputs(facts, generated=5, seed=1), generated=5)
    for selection in done.selections:
        assert selection is not None
        assert selection.units_RU.tolist() == [streaming_pages(length, budget=6)]


@pytest.mark.parametrize("length", [97, 111, 112, 113, 320])
def test_recency_reads_what_its_twin_reads_in_sparse_layers(length: int) -> None:
    facts = plain_facts(length - 5, num_layers=LAYERS)
    row = RecencyPolicy(PARAMS, num_layers=LAYERS).begin(facts)
    done = run_step(row, draw_inputs(facts, generated=5, seed=1), generated=5)
    assert done.selections[:2] == [None, None]
    for selection in done.selections[2:]:
        assert selection is not None
        assert selection.units_RU.tolist() == [recent_pages(length, budget=6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("generated", [1, 12, 13, 14, 60])
def test_the_oracle_reads_what_its_twin_reads(generated: int, dtype: torch.dtype) -> None:
    facts = mixed_facts(300, slots=180, num_layers=LAYERS)
    inputs = draw_inputs(facts, generated=generated, seed=generated)
    inputs.queries = [query.to(dtype) for query in inputs.queries]
    for kv in inputs.kvs:
        kv.keys_TGD = kv.keys_TGD.to(dtype)
    row = OracleTopkPolicy(PARAMS, num_layers=LAYERS).begin(facts)
    done = run_step(row, inputs, generated=generated)
    assert done.selections[:2] == [None, None]
    for layer in range(2, LAYERS):
        selection = done.selections[layer]
        assert selection is not None
        wanted = oracle_pages(
            inputs.queries[layer].double().tolist(),
            inputs.kvs[layer].keys_TGD.double().tolist(),
            budget=6,
            recency=2,
        )
        assert selection.units_RU.tolist() == [wanted]
