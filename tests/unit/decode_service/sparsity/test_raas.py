import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole, RowPolicy
from decode_service.sparsity.raas import RaasPolicy
from shared.types.methods import SparsityParams
from tests.support.growing_rows import GrowingRow
from tests.support.sparse_steps import FakeKv, mixed_facts, plain_facts

LAYERS = 5
PARAMS = SparsityParams(full_layers=(0,), page_budget=6, recency_pages=2, policy="raas")
POLICY = RaasPolicy(PARAMS, num_layers=LAYERS)


def pages_of(slots: list[int]) -> list[int]:
    return sorted({slot // 16 for slot in slots})


def test_every_layer_is_sparse_and_wants_no_evidence():
    row = POLICY.begin(plain_facts(20, num_layers=LAYERS))
    assert row.roles == (LayerRole.SPARSE,) * LAYERS
    step = row.step(generated=1)
    assert {step.evidence(layer) for layer in range(LAYERS)} == {Evidence.NONE}
    with pytest.raises(AssertionError, match="nothing was asked"):
        step.observe(3, torch.zeros(4, 21))


def test_while_everything_fits_everything_is_read():
    facts = plain_facts(20, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=76), POLICY.begin(facts)
    for generated in range(1, 77):
        assert row.step(policy, generated) == [[list(range(20 + generated))]] * LAYERS


def test_forced_selections_of_everything_are_everything():
    facts = plain_facts(20, num_layers=LAYERS)
    policy, row = POLICY.begin(facts, force=True), GrowingRow(facts, steps=60)
    for generated in range(1, 61):
        step = policy.step(generated=generated)
        for layer in range(LAYERS):
            selection = step.select(layer, row.query(layer, generated), row.kv(layer, generated))
            assert selection is not None
            assert selection.units_RU.tolist() == [list(range((19 + generated) // 16 + 1))]
            assert selection.visible == 20 + generated
        step.commit()


@pytest.mark.parametrize("prompt", [1, 16, 17, 40, 64])
def test_the_prompt_stays_the_last_page_is_read_and_the_budget_is_kept(prompt):
    facts = plain_facts(prompt, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=200), POLICY.begin(facts)
    for generated in range(1, 201):
        last = (prompt + generated - 1) // 16
        for (slots,) in row.step(policy, generated):
            pages = pages_of(slots)
            assert len(pages) == min(last + 1, 6)
            assert set(range(-(-prompt // 16))) <= set(pages)
            assert pages[-1] == last


def test_a_prompt_beyond_the_budget_is_kept_and_leaves_the_answer_the_recency_pages():
    facts = plain_facts(200, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=150), POLICY.begin(facts)
    for generated in range(1, 151):
        last = (199 + generated) // 16
        for (slots,) in row.step(policy, generated):
            pages = pages_of(slots)
            assert pages[:13] == list(range(13))
            assert len(pages) == 13 + min(2, last - 12)
            assert pages[-1] == last


def test_each_layer_of_a_pruned_prompt_keeps_the_prompt_pages_of_its_own_layout():
    facts = mixed_facts(90, slots=20, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=150), POLICY.begin(facts)
    for generated in range(1, 151):
        read = row.step(policy, generated)
    assert [pages_of(slots)[:6] == list(range(6)) for (slots,) in read[:4]] == [True] * 4
    assert [len(pages_of(slots)) for (slots,) in read] == [8, 8, 8, 8, 6]
    assert pages_of(read[4][0])[:2] == [0, 1]


def test_a_hidden_page_stays_hidden_and_layers_hide_for_themselves():
    facts = plain_facts(20, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=250), POLICY.begin(facts)
    hidden: list[set[int]] = [set() for _ in range(LAYERS)]
    for generated in range(1, 251):
        for layer, (slots,) in enumerate(row.step(policy, generated)):
            pages = set(pages_of(slots))
            assert not hidden[layer] & pages
            hidden[layer] = set(range((19 + generated) // 16 + 1)) - pages
    assert len({frozenset(pages) for pages in hidden}) > 1


def test_what_hidden_pages_hold_does_not_matter():
    facts = plain_facts(20, num_layers=LAYERS)
    clean, spoilt = GrowingRow(facts, steps=250), GrowingRow(facts, steps=250)
    policy, other = POLICY.begin(facts), POLICY.begin(facts)
    for generated in range(1, 251):
        read = clean.step(policy, generated)
        assert spoilt.step(other, generated) == read
        for layer, (slots,) in enumerate(read):
            hidden = torch.ones(20 + generated, dtype=torch.bool)
            hidden[slots] = False
            spoilt.keys[layer][: 20 + generated][hidden] = torch.nan


class OneLayer:
    """A layer of one head whose second page holds the only key along axis 0; the rest is noise."""

    def __init__(self) -> None:
        self.policy: RowPolicy = RaasPolicy(PARAMS, num_layers=1).begin(
            plain_facts(16, num_layers=1, num_heads=1, num_kv_heads=1)
        )
        self.keys = 0.1 * torch.randn(400, 1, 8, generator=torch.Generator().manual_seed(1))
        self.keys[16:32, 0, 1] = -5.0
        self.keys[20, 0, 0] = 9.0

    def read(self, generated: int, *, axis: int, commit: bool = True) -> list[int]:
        query = torch.zeros(1, 8)
        query[0, axis] = 4.0
        step = self.policy.step(generated=generated)
        selection = step.select(0, query, FakeKv(self.keys[: 16 + generated]))
        if commit:
            step.commit()
        last = (15 + generated) // 16
        return list(range(last + 1)) if selection is None else selection.units_RU[0].tolist()


def test_a_page_that_stays_important_outlives_newer_ones():
    layer = OneLayer()
    for generated in range(1, 201):
        pages = layer.read(generated, axis=0)
    # By age alone pages 0 and 9..13 would be left.
    assert pages[:2] == [0, 1]
    assert pages[-1] == 13


def test_a_page_that_is_no_longer_important_is_hidden_by_and_by():
    layer = OneLayer()
    for generated in range(1, 121):
        assert 1 in layer.read(generated, axis=0)
    later = [1 in layer.read(generated, axis=1) for generated in range(121, 300)]
    assert later[0]
    assert not later[-1]
    assert later == sorted(later, reverse=True)


def test_steps_that_failed_stamp_nothing():
    layer, tried = OneLayer(), OneLayer()
    for generated in range(1, 121):
        assert tried.read(generated, axis=0) == layer.read(generated, axis=0)
    for generated in range(121, 200):
        tried.read(generated, axis=0, commit=False)
        assert tried.read(generated, axis=1) == layer.read(generated, axis=1)


@pytest.mark.parametrize("generated", [1, 61, 76, 77, 78, 93])
def test_a_step_that_failed_leaves_nothing_behind(generated):
    facts = plain_facts(20, num_layers=LAYERS)
    row, spoilt = GrowingRow(facts, steps=140), GrowingRow(facts, steps=140, seed=9)
    untouched, tried = POLICY.begin(facts), POLICY.begin(facts)
    for before in range(1, generated):
        row.step(untouched, before)
        row.step(tried, before)
    spoilt.step(tried, generated, commit=False)
    for after in range(generated, 141):
        assert row.step(tried, after) == row.step(untouched, after)


def test_only_the_keys_of_the_last_page_are_looked_at_once_the_rest_has_bounds():
    facts = plain_facts(200, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=60), POLICY.begin(facts)
    for generated in range(1, 61):
        row.step(policy, generated)
    # The answer's second page begins at slot 224, and until then there is nothing to choose.
    wanted = [0, *[(199 + generated) // 16 for generated in range(26, 61)]]
    assert row.asked[2] == wanted


def test_a_row_of_another_model_is_our_mistake():
    with pytest.raises(AssertionError, match="this model"):
        POLICY.begin(plain_facts(10, num_layers=LAYERS + 1))
