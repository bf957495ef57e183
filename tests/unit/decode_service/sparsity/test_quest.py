import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole
from decode_service.sparsity.quest import QuestPolicy, SharedQuestPolicy
from shared.types.methods import SparsityParams
from tests.support.growing_rows import GrowingRow
from tests.support.sparse_steps import FakeKv, mixed_facts, plain_facts

LAYERS = 6
PARAMS = SparsityParams(full_layers=(0,), page_budget=6, recency_pages=2)


def build(shared: bool = False) -> QuestPolicy:
    make = SharedQuestPolicy if shared else QuestPolicy
    return make(PARAMS, num_layers=LAYERS)


@pytest.fixture(params=[False, True], ids=["by-kv-head", "shared"])
def policy(request: pytest.FixtureRequest) -> QuestPolicy:
    return build(request.param)


def test_names_say_for_whom_a_choice_is_made():
    assert [build().name, build(shared=True).name] == ["quest", "quest_shared"]


def test_the_first_two_layers_read_everything_and_nobody_plans(policy):
    row = policy.begin(plain_facts(500, num_layers=LAYERS))
    assert row.roles == (LayerRole.FULL,) * 2 + (LayerRole.SPARSE,) * 4
    read = GrowingRow(plain_facts(500, num_layers=LAYERS), steps=1).step(row, 1)
    assert read[:2] == [[list(range(501))]] * 2


def test_a_model_of_one_layer_is_dense(policy):
    small = QuestPolicy(PARAMS, num_layers=1)
    assert small.begin(plain_facts(5, num_layers=1)).roles == (LayerRole.FULL,)


def test_no_evidence_is_wanted_and_none_is_taken(policy):
    step = policy.begin(plain_facts(500, num_layers=LAYERS)).step(generated=1)
    assert {step.evidence(layer) for layer in range(LAYERS)} == {Evidence.NONE}
    with pytest.raises(AssertionError, match="nothing was asked"):
        step.observe(3, torch.zeros(4, 501))


@pytest.mark.parametrize("length", [1, 16, 95, 96])
def test_within_the_budget_everything_is_read_and_no_key_is_looked_at(policy, length):
    facts = plain_facts(length - 1, num_layers=LAYERS)
    row = GrowingRow(facts, steps=1)
    read = row.step(policy.begin(facts), 1)
    assert read == [[list(range(length))]] * LAYERS
    assert row.asked == [[]] * LAYERS


@pytest.mark.parametrize("length", [1, 16, 17, 96])
def test_forced_within_the_budget_every_page_is_selected(policy, length):
    facts = plain_facts(length - 1, num_layers=LAYERS)
    step = policy.begin(facts, force=True).step(generated=1)
    row = GrowingRow(facts, steps=1)
    selection = step.select(2, row.query(2, 1), row.kv(2, 1))
    assert selection is not None
    pages = list(range(-(-length // 16)))
    assert selection.units_RU.tolist() == [pages] * selection.units_RU.shape[0]
    assert selection.visible == length


@pytest.mark.parametrize("length", [97, 111, 112, 113, 320])
def test_the_last_page_is_read_and_counts_inside_the_budget(policy, length):
    facts = plain_facts(length - 1, num_layers=LAYERS)
    row = GrowingRow(facts, steps=1)
    step = policy.begin(facts).step(generated=1)
    selection = step.select(4, row.query(4, 1), row.kv(4, 1))
    assert selection is not None
    for pages in selection.units_RU.tolist():
        assert len(pages) == 6
        assert pages == sorted(set(pages))
        assert pages[-1] == (length - 1) // 16
    assert selection.visible == 80 + (length - 1) % 16 + 1


def planted() -> tuple[torch.Tensor, FakeKv]:
    """Page 3 answers the queries of KV head 0, page 7 those of KV head 1."""
    keys = 0.01 * torch.randn(200, 2, 8)
    keys[3 * 16 + 5, 0, 2] = 9.0
    keys[7 * 16 + 11, 1, 4] = -9.0
    query = torch.zeros(4, 8)
    query[1, 2] = 1.0
    query[2, 4] = -1.0
    return query, FakeKv(keys)


def test_each_kv_head_finds_the_page_that_answers_any_of_its_query_heads():
    query, kv = planted()
    step = build().begin(plain_facts(199, num_layers=LAYERS)).step(generated=1)
    selection = step.select(5, query, kv)
    assert selection is not None
    first, second = selection.units_RU.tolist()
    assert 3 in first
    assert 7 in second


def test_a_shared_choice_has_the_pages_that_answer_any_head():
    query, kv = planted()
    step = build(shared=True).begin(plain_facts(199, num_layers=LAYERS)).step(generated=1)
    selection = step.select(5, query, kv)
    assert selection is not None
    (pages,) = selection.units_RU.tolist()
    assert {3, 7} <= set(pages)


def test_page_0_is_not_forced(policy):
    query, kv = planted()
    kv.keys_TGD[:16] = 0.0
    query = query.abs() + 1.0
    step = policy.begin(plain_facts(199, num_layers=LAYERS)).step(generated=1)
    selection = step.select(5, query, kv)
    assert selection is not None
    assert not bool((selection.units_RU == 0).any())


@pytest.mark.parametrize("joined", [2, 16, 50])
def test_a_row_taken_up_late_reads_what_one_that_grew_reads(policy, joined):
    facts = mixed_facts(130, slots=99, num_layers=LAYERS)
    row = GrowingRow(facts, steps=60)
    grown, late = policy.begin(facts), policy.begin(facts)
    for generated in range(1, 61):
        read = row.step(grown, generated)
        if generated >= joined:
            assert row.step(late, generated) == read


def test_after_the_first_step_only_pages_that_became_full_are_looked_at(policy):
    facts = plain_facts(190, num_layers=LAYERS)
    row, policy_row = GrowingRow(facts, steps=40), policy.begin(facts)
    for generated in range(1, 41):
        row.step(policy_row, generated)
    # 191 slots: 11 full pages and the last; page 11 is full, but last, until slot 192 is written.
    assert row.asked[3] == [0, 11, 12, 13]


@pytest.mark.parametrize("generated", [1, 18, 19])
def test_a_step_that_failed_leaves_nothing_behind(policy, generated):
    facts = plain_facts(191 - generated, num_layers=LAYERS)
    row = GrowingRow(facts, steps=40)
    untouched, tried = policy.begin(facts), policy.begin(facts)
    for before in range(1, generated):
        row.step(untouched, before)
        row.step(tried, before)
    spoilt = GrowingRow(facts, steps=40, seed=9)
    spoilt.step(tried, generated, commit=False)
    for after in range(generated, 41):
        assert row.step(tried, after) == row.step(untouched, after)


def test_a_layer_of_a_pruned_prompt_is_judged_by_its_own_length(policy):
    facts = mixed_facts(130, slots=40, num_layers=LAYERS)
    read = GrowingRow(facts, steps=1).step(policy.begin(facts), 1)
    assert {len(slots) for slots in read[2] + read[3]} == {80 + 3}
    assert read[4:] == [[list(range(41))]] * 2


def test_a_row_of_another_model_is_our_mistake(policy):
    with pytest.raises(AssertionError, match="this model"):
        policy.begin(plain_facts(10, num_layers=LAYERS + 1))
