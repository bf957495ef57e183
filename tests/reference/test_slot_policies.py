"""TidalDecode and LessIsMore against their slow twins, over pruned and unpruned prompts."""

from collections.abc import Callable

import pytest

from decode_service.sparsity.base import PagePolicy, RowFacts
from decode_service.sparsity.less_is_more import LessIsMorePolicy
from decode_service.sparsity.tidal import TidalPolicy
from shared.types.methods import SparsityParams
from tests.reference.slot_twins import SlowBoards, less_is_more_slots, tidal_slots
from tests.support.sparse_steps import draw_inputs, mixed_facts, plain_facts, run_step

LAYERS = 8
BUDGET = 96
Twin = Callable[[list[list[float]]], list[list[int]]]


def tidal_twin(scores: list[list[float]]) -> list[list[int]]:
    return tidal_slots(scores, budget=BUDGET)


def less_is_more_twin(scores: list[list[float]]) -> list[list[int]]:
    return [less_is_more_slots(scores, budget=BUDGET, recent=28)]


@pytest.mark.parametrize(
    ("policy", "twin"),
    [(TidalPolicy, tidal_twin), (LessIsMorePolicy, less_is_more_twin)],
    ids=["tidal", "less_is_more"],
)
@pytest.mark.parametrize("correction", [3, 4, 5, 6])
@pytest.mark.parametrize(
    "facts",
    [
        plain_facts(150, num_layers=LAYERS),
        mixed_facts(300, slots=120, num_layers=LAYERS),
        mixed_facts(300, slots=120, num_layers=LAYERS, rows=1),
    ],
    ids=["whole", "a set a head", "a set a layer"],
)
@pytest.mark.parametrize("generated", [1, 9])
def test_every_sparse_layer_reads_what_its_twin_reads(
    policy: Callable[..., PagePolicy],
    twin: Twin,
    correction: int,
    facts: RowFacts,
    generated: int,
) -> None:
    params = SparsityParams(
        full_layers=(0,),
        page_budget=6,
        recency_pages=1,
        correction_layer=correction,
        recent_share=0.3,
    )
    row = policy(params, num_layers=LAYERS).begin(facts)
    done = run_step(row, draw_inputs(facts, generated=generated, seed=5), generated=generated)
    boards = SlowBoards(facts=facts, generated=generated)
    for layer in range(LAYERS):
        selection, probs = done.selections[layer], done.probs[layer]
        if layer in {0, 1, 2, correction}:
            assert selection is None
            assert (probs is None) == (layer < 2)
        else:
            assert selection is not None
            assert selection.unit == 1
            assert selection.units_RU.tolist() == twin(boards.scores(layer))
        if probs is not None:
            boards.write(layer, probs.tolist())
