"""TidalDecode and LessIsMore: which layers choose, and how slots are ranked and united."""

from collections.abc import Callable

import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole, PagePolicy, Selection
from decode_service.sparsity.correction import correcting_roles
from decode_service.sparsity.less_is_more import LessIsMorePolicy, united
from decode_service.sparsity.tidal import TidalPolicy
from shared.errors import ConfigError
from shared.types.methods import SparsityParams
from tests.support.sparse_steps import (
    StepInputs,
    draw_inputs,
    mixed_facts,
    plain_facts,
    run_step,
)

LAYERS = 8
POLICIES: dict[str, Callable[..., PagePolicy]] = {
    "tidal": TidalPolicy,
    "less_is_more": LessIsMorePolicy,
}
F, D, S = LayerRole.FULL, LayerRole.DELTA, LayerRole.SPARSE


def params(*, correction: int | None = None, share: float = 0.25) -> SparsityParams:
    return SparsityParams(
        full_layers=(0,),
        page_budget=6,
        recency_pages=1,
        correction_layer=correction,
        recent_share=share,
    )


def correction_of(num_layers: int) -> int:
    roles = correcting_roles(params(), num_layers=num_layers)
    (layer,) = [i for i, role in enumerate(roles) if role is D and i > 2]
    return layer


def slots(selection: Selection | None) -> list[list[int]]:
    assert selection is not None
    assert selection.visible == selection.units_RU.shape[1]
    return [[int(slot) for slot in row] for row in selection.units_RU.tolist()]


def inputs_that_like(liked: dict[int, list[int]], *, length: int) -> StepInputs:
    """Four heads of one KV head each; head h likes its slots in that order, in every layer."""
    keys_TGD = torch.zeros(length, 4, 8)
    for head, order in liked.items():
        for place, slot in enumerate(order):
            keys_TGD[slot, head, 0] = 8.0 - place / 16
    drawn = draw_inputs(
        plain_facts(length - 1, num_layers=LAYERS, num_kv_heads=4), generated=1, seed=0
    )
    for kv in drawn.kvs:
        kv.keys_TGD = keys_TGD
    drawn.queries = [torch.ones(4, 8) for _ in drawn.queries]
    return drawn


def test_layer_two_chooses_and_a_later_one_corrects() -> None:
    assert correcting_roles(params(correction=5), num_layers=8) == (F, F, D, S, S, D, S, S)


@pytest.mark.parametrize(
    ("num_layers", "correction"),
    [(32, 13), (28, 11), (30, 12), (48, 20), (16, 7), (8, 3), (6, 3), (5, 3)],
)
def test_the_correction_lies_at_thirteen_of_thirty_two_layers_where_there_is_room(
    num_layers: int, correction: int
) -> None:
    assert correction_of(num_layers) == correction


@pytest.mark.parametrize("num_layers", [1, 4])
def test_a_model_without_room_for_a_correction_is_refused(num_layers: int) -> None:
    with pytest.raises(ConfigError, match="too shallow"):
        correcting_roles(params(), num_layers=num_layers)


def test_a_correction_that_nobody_would_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"choose 3\.\.6"):
        correcting_roles(params(correction=7), num_layers=8)


@pytest.mark.parametrize("name", POLICIES)
def test_choosing_layers_report_every_heads_probabilities_while_somebody_reads_a_choice(
    name: str,
) -> None:
    row = POLICIES[name](params(correction=5), num_layers=LAYERS).begin(
        plain_facts(200, num_layers=LAYERS)
    )
    step = row.step(generated=1)
    wanted = [step.evidence(layer) for layer in range(LAYERS)]
    assert [i for i, evidence in enumerate(wanted) if evidence is Evidence.PROBS] == [2, 5]
    assert wanted.count(Evidence.NONE) == LAYERS - 2


@pytest.mark.parametrize("name", POLICIES)
def test_within_the_budget_nothing_is_chosen_and_by_force_every_slot_is(name: str) -> None:
    facts = plain_facts(95, num_layers=LAYERS)
    inputs = draw_inputs(facts, generated=1, seed=0)
    policy = POLICIES[name](params(), num_layers=LAYERS)
    plain = run_step(policy.begin(facts), inputs, generated=1)
    assert plain.selections == [None] * LAYERS
    assert plain.probs == [None] * LAYERS
    row = policy.begin(facts, force=True)
    forced = run_step(row, inputs, generated=1)
    for role, selection in zip(row.roles, forced.selections, strict=True):
        if role is S:
            assert all(head == list(range(96)) for head in slots(selection))
        else:
            assert selection is None


@pytest.mark.parametrize("name", POLICIES)
def test_each_length_has_its_own_gate(name: str) -> None:
    facts = mixed_facts(200, slots=90, num_layers=LAYERS)
    row = POLICIES[name](params(correction=6), num_layers=LAYERS).begin(facts)
    done = run_step(row, draw_inputs(facts, generated=1, seed=0), generated=1)
    assert done.selections[3] is not None
    assert done.selections[4:] == [None] * 4


def test_tidal_gives_each_head_its_own_slots_and_always_the_fed_token() -> None:
    facts = plain_facts(159, num_layers=LAYERS, num_kv_heads=4)
    liked = {head: list(range(head, 120 + head)) for head in range(4)}
    row = TidalPolicy(params(), num_layers=LAYERS).begin(facts)
    done = run_step(row, inputs_that_like(liked, length=160), generated=1)
    wanted = [sorted([*order[:95], 159]) for order in liked.values()]
    for layer in (4, 5, 6, 7):
        assert slots(done.selections[layer]) == wanted


def test_less_is_more_reads_the_last_slots_and_the_heads_best_in_turn() -> None:
    facts = plain_facts(159, num_layers=LAYERS, num_kv_heads=4)
    liked = {0: [5, 6, 7], 1: [7, 8, 9], 2: [5, 8, 10], 3: [50, 51, 159]}
    row = LessIsMorePolicy(params(share=0.95), num_layers=LAYERS).begin(facts)
    done = run_step(row, inputs_that_like(liked, length=160), generated=1)
    # 91 of the 96 slots are recent; the other five: 5, 7, (5,) 50, then 6, 8.
    assert slots(done.selections[4]) == [[5, 6, 7, 8, 50, *range(69, 160)]]


@pytest.mark.parametrize(("share", "recent"), [(0.001, 1), (0.25, 24), (0.999, 95)])
def test_the_recent_share_leaves_room_for_the_fed_token_and_for_a_choice(
    share: float, recent: int
) -> None:
    facts = plain_facts(399, num_layers=LAYERS)
    row = LessIsMorePolicy(params(share=share), num_layers=LAYERS).begin(facts)
    inputs = draw_inputs(facts, generated=1, seed=2)
    for kv in inputs.kvs:
        # All slots score alike, so the choice falls on the lowest.
        kv.keys_TGD.zero_()
    (chosen,) = slots(run_step(row, inputs, generated=1).selections[4])
    assert chosen == [*range(96 - recent), *range(400 - recent, 400)]


def test_equal_scores_go_to_the_lower_slot_and_what_is_no_number_comes_last() -> None:
    scores_HM = torch.tensor([[0.5, torch.nan, 0.5, 0.25], [0.0, torch.nan, 0.0, 0.0]])
    assert united(scores_HM, count=2).tolist() == [0, 2]
    assert united(scores_HM, count=3).tolist() == [0, 2, 3]
    assert united(scores_HM, count=4).tolist() == [0, 1, 2, 3]
