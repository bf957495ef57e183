"""Policies that remember, step by step against their slow twins."""

import math

import pytest

from decode_service.sparsity.base import RowFacts
from decode_service.sparsity.h2o import H2oPolicy
from decode_service.sparsity.quest import QuestPolicy, SharedQuestPolicy
from decode_service.sparsity.raas import RaasPolicy
from shared.types.methods import SparsityParams
from tests.reference import rival_twins
from tests.support.growing_rows import GrowingRow
from tests.support.sparse_steps import mixed_facts, plain_facts

ROWS = [
    pytest.param(lambda layers: plain_facts(1, num_layers=layers), id="one-token"),
    pytest.param(lambda layers: plain_facts(31, num_layers=layers), id="31-tokens"),
    pytest.param(lambda layers: plain_facts(150, num_layers=layers), id="150-tokens"),
    pytest.param(
        lambda layers: plain_facts(70, num_layers=layers, num_heads=9, num_kv_heads=3),
        id="three-a-group",
    ),
    pytest.param(lambda layers: mixed_facts(140, slots=33, num_layers=layers), id="pruned"),
]


def page_slots(pages: list[int], *, length: int) -> list[int]:
    return [slot for page in pages for slot in range(16 * page, min(16 * page + 16, length))]


@pytest.mark.parametrize("shared", [False, True], ids=["by-kv-head", "shared"])
@pytest.mark.parametrize("make_facts", ROWS)
def test_quest_reads_what_its_twin_reads_that_remembers_nothing(make_facts, shared):
    facts: RowFacts = make_facts(6)
    params = SparsityParams(full_layers=(0,), page_budget=5, recency_pages=2)
    build = SharedQuestPolicy if shared else QuestPolicy
    policy = build(params, num_layers=6).begin(facts)
    row = GrowingRow(facts, steps=100, seed=1)
    for generated in range(1, 101):
        read = row.step(policy, generated)
        for layer in range(6):
            length = facts.length(layer, generated=generated)
            wanted = [list(range(length))]
            if layer >= 2 and math.ceil(length / 16) > 5:
                chosen = rival_twins.quest(
                    row.query(layer, generated),
                    row.kv(layer, generated).keys_TGD,
                    budget=5,
                    shared=shared,
                )
                wanted = [page_slots(pages, length=length) for pages in chosen]
            assert read[layer] == wanted, (generated, layer)


@pytest.mark.parametrize("make_facts", ROWS)
def test_raas_reads_what_its_twin_reads(make_facts):
    facts: RowFacts = make_facts(5)
    params = SparsityParams(full_layers=(0,), page_budget=5, recency_pages=3)
    policy = RaasPolicy(params, num_layers=5).begin(facts)
    row = GrowingRow(facts, steps=200, seed=2)
    twins = [
        rival_twins.Raas(prompt_slots=facts.layout_of(layer).slots, budget=5, recency=3)
        for layer in range(5)
    ]
    for generated in range(1, 201):
        read = row.step(policy, generated)
        for layer, twin in enumerate(twins):
            keys = row.kv(layer, generated).keys_TGD
            pages = twin.step(row.query(layer, generated), keys, now=generated)
            assert read[layer] == [page_slots(pages, length=len(keys))], (generated, layer)


@pytest.mark.parametrize("make_facts", ROWS)
def test_h2o_reads_what_its_twin_reads(make_facts):
    facts: RowFacts = make_facts(5)
    params = SparsityParams(
        full_layers=(0,), page_budget=3, recency_pages=1, policy="h2o", recent_share=0.3
    )
    policy = H2oPolicy(params, num_layers=5).begin(facts)
    row = GrowingRow(facts, steps=80, seed=3)
    twins = [rival_twins.H2o(budget=48, recent=14) for _ in range(5)]
    for generated in range(1, 81):
        read = row.step(policy, generated)
        for layer, twin in enumerate(twins):
            wanted = twin.step(row.query(layer, generated), row.kv(layer, generated).keys_TGD)
            whole = [list(range(facts.length(layer, generated=generated)))]
            everything = all(slots == whole[0] for slots in wanted)
            assert read[layer] == (whole if everything else wanted), (generated, layer)
