from dataclasses import replace
from typing import Any

import pytest
import torch

from decode_service.sparsity.base import LayerRole, RowFacts
from decode_service.sparsity.delta import DeltaPolicy, page_bucket
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.planner import layer_roles
from shared.errors import ConfigError
from shared.types.kv_manifest import PositionKind
from shared.types.methods import PageHeads, PageLayout, SparsityParams
from tests.support.policy_rows import LAYERS, make_facts

F, D, S = LayerRole.FULL, LayerRole.DELTA, LayerRole.SPARSE


def test_roles_of_the_paper() -> None:
    roles = layer_roles((0, 1, 2, 14, 22), num_layers=28)
    assert [layer for layer, role in enumerate(roles) if role is D] == [2, 14, 22]
    assert roles[:2] == (F, F)
    assert roles[27] is S


@pytest.mark.parametrize(
    ("full_layers", "roles"),
    [
        ((0,), (D, S, S, S)),
        ((0, 3), (D, S, S, F)),
        ((0, 1, 2), (F, F, D, S)),
        ((0, 2, 3), (D, S, F, F)),
        ((0, 1, 2, 3), (F, F, F, F)),
    ],
)
def test_a_full_layer_before_a_sparse_one_plans_and_the_last_never_does(
    full_layers: tuple[int, ...], roles: tuple[LayerRole, ...]
) -> None:
    assert layer_roles(full_layers, num_layers=4) == roles


def test_full_layers_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="layer 22 of a model of 12"):
        DeltaPolicy(SparsityParams(full_layers=(0, 22)), num_layers=12)


@pytest.mark.parametrize(
    ("full_layers", "budget", "recency"),
    [((), 16, 4), ((1, 2), 16, 4), ((0, 2, 1), 16, 4), ((0,), 5, 4), ((0,), 16, 0)],
)
def test_parameters_that_cannot_work_are_refused(
    full_layers: tuple[int, ...], budget: int, recency: int
) -> None:
    with pytest.raises(ConfigError):
        SparsityParams(full_layers=full_layers, page_budget=budget, recency_pages=recency)


def policy_of(**options: Any) -> DeltaPolicy:
    params = SparsityParams(full_layers=(0, 1, 4), page_budget=6, recency_pages=2, **options)
    return DeltaPolicy(params, num_layers=LAYERS)


def all_of(kind: str) -> RowFacts:
    return make_facts(kind, prompt_tokens=150, kept=110)


def test_the_budget_covers_pages_and_not_slots() -> None:
    assert [policy_of().covers(length) for length in (1, 95, 96, 97, 500)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_layer_that_holds_other_tokens_than_the_one_before_reads_all_in_segment_mode() -> None:
    policy = policy_of(layout=PageLayout.SEGMENT)
    assert policy.begin(all_of("identity")).roles == (F, D, S, S, D, S, S, S)
    # Layers 3.. hold one choice: layer 3 joins F, so layer 1 has still layer 2 to plan for.
    assert policy.begin(all_of("shared")).roles == (F, D, S, F, D, S, S, S)
    # A layer that only layers of other layouts follow plans nothing.
    assert policy.begin(all_of("layer")).roles == (F, F, F, F, F, F, D, S)
    assert policy.begin(all_of("head")).roles == (F, F, F, F, F, F, D, S)


def test_layouts_that_hold_the_same_positions_are_one_segment() -> None:
    facts = all_of("identity")
    everything = KvLayout(kind=PositionKind.SHARED, slots=150, positions_RN=torch.arange(150)[None])
    renamed = replace(facts, layouts=(*facts.layouts, everything), layer_layouts=(0, 0, 0, 1) * 2)
    policy = policy_of(layout=PageLayout.SEGMENT)
    assert policy.begin(renamed).roles == policy.begin(facts).roles


@pytest.mark.parametrize("kind", ["shared", "layer", "head"])
def test_in_segment_mode_a_choice_comes_from_a_layer_of_the_same_positions(kind: str) -> None:
    facts = all_of(kind)
    planner = -1
    for layer, role in enumerate(policy_of(layout=PageLayout.SEGMENT).begin(facts).roles):
        if role is D:
            planner = layer
        if role is S:
            assert facts.layer_layouts[layer] == facts.layer_layouts[planner]


@pytest.mark.parametrize(
    ("count", "least", "bucket"),
    [
        (3, 4, 4),
        (4, 4, 4),
        (5, 4, 8),
        (8, 4, 8),
        (9, 4, 16),
        (17, 6, 32),
        (11, 12, 12),
        (13, 12, 16),
    ],
)
def test_counts_of_pages_are_rounded_up_to_few_sizes(count: int, least: int, bucket: int) -> None:
    assert page_bucket(count, least=least) == bucket


def chosen(policy: DeltaPolicy, scores_ST: torch.Tensor) -> list[list[int]]:
    pages: list[list[int]] = policy.choose(scores_ST).units_RU.tolist()
    return pages


def test_a_choice_for_all_heads_takes_a_pages_largest_sum_among_the_heads() -> None:
    scores_GT = torch.zeros(2, 160)
    scores_GT[0, 16:48] = 0.25
    scores_GT[1, 80:96] = 0.5
    assert chosen(policy_of(), scores_GT) == [[0, 1, 2, 5, 8, 9]]


def test_a_choice_a_kv_head_is_each_heads_own() -> None:
    scores_GT = torch.zeros(2, 160)
    scores_GT[0, 96:112] = 0.25
    scores_GT[1, 80:96] = 0.5
    policy = policy_of(heads=PageHeads.KV_HEAD)
    assert chosen(policy, scores_GT) == [[0, 1, 2, 6, 8, 9], [0, 1, 2, 5, 8, 9]]


def test_mass_that_few_pages_hold_needs_few_and_never_more_than_the_budget() -> None:
    peaked, flat = torch.zeros(1, 320), torch.full((1, 320), 0.1)
    peaked[0, 50] = 1.0
    assert chosen(policy_of(mass=0.9), peaked) == [[0, 3, 18, 19]]
    assert chosen(policy_of(mass=0.9), flat) == [[0, 1, 2, 3, 18, 19]]


def test_mass_leaves_a_row_within_the_budget_alone() -> None:
    peaked = torch.zeros(1, 90)
    peaked[0, 50] = 1.0
    assert chosen(policy_of(mass=0.9), peaked) == [[0, 1, 2, 3, 4, 5]]
