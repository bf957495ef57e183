import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole, Selection
from decode_service.sparsity.h2o import H2oPolicy
from shared.types.methods import SparsityParams
from tests.support.growing_rows import GrowingRow
from tests.support.sparse_steps import FakeKv, mixed_facts, plain_facts

LAYERS = 5
PARAMS = SparsityParams(
    full_layers=(0,), page_budget=3, recency_pages=1, policy="h2o", recent_share=0.25
)
"""48 slots, 12 of them the last ones."""
POLICY = H2oPolicy(PARAMS, num_layers=LAYERS)


def test_every_layer_is_sparse_and_wants_every_heads_probabilities():
    row = POLICY.begin(plain_facts(20, num_layers=LAYERS))
    assert row.roles == (LayerRole.SPARSE,) * LAYERS
    step = row.step(generated=1)
    assert {step.evidence(layer) for layer in range(LAYERS)} == {Evidence.PROBS}


def test_while_everything_fits_everything_is_read():
    facts = plain_facts(20, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=28), POLICY.begin(facts)
    for generated in range(1, 29):
        assert row.step(policy, generated) == [[list(range(20 + generated))]] * LAYERS


def test_forced_selections_of_everything_are_everything():
    facts = plain_facts(20, num_layers=LAYERS)
    policy, row = POLICY.begin(facts, force=True), GrowingRow(facts, steps=28)
    for generated in range(1, 29):
        read = row.step(policy, generated)
        assert read == [[list(range(20 + generated))] * 2] * LAYERS


def test_the_first_step_of_a_long_prompt_reads_it_all_the_second_reads_the_budget():
    facts = plain_facts(200, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=2), POLICY.begin(facts)
    assert row.step(policy, 1) == [[list(range(201))]] * LAYERS
    assert {len(slots) for rows in row.step(policy, 2) for slots in rows} == {48}


@pytest.mark.parametrize("prompt", [1, 47, 48, 200])
def test_the_budget_is_filled_exactly_and_the_last_slots_are_always_there(prompt):
    facts = plain_facts(prompt, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=80), POLICY.begin(facts)
    for generated in range(1, 81):
        length = prompt + generated
        for rows in row.step(policy, generated):
            for slots in rows:
                assert slots == sorted(set(slots))
                assert len(slots) == (length if generated == 1 else min(length, 48))
                assert slots[-12:] == list(range(max(0, length - 12), length))


def test_a_hidden_slot_stays_hidden_and_kv_heads_hide_for_themselves():
    facts = plain_facts(100, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=80), POLICY.begin(facts)
    row.step(policy, 1)
    before = row.step(policy, 2)
    for generated in range(3, 81):
        read = row.step(policy, generated)
        for rows, rows_before in zip(read, before, strict=True):
            assert rows[0] != rows[1]
            for slots, slots_before in zip(rows, rows_before, strict=True):
                assert set(slots) <= {*slots_before, 99 + generated}
        before = read


def test_what_hidden_slots_hold_does_not_matter_and_no_key_is_looked_at():
    facts = plain_facts(100, num_layers=LAYERS)
    clean, spoilt = GrowingRow(facts, steps=60), GrowingRow(facts, steps=60)
    policy, other = POLICY.begin(facts), POLICY.begin(facts)
    for generated in range(1, 61):
        read = clean.step(policy, generated)
        assert spoilt.step(other, generated) == read
        for layer, rows in enumerate(read):
            for head, slots in enumerate(rows if len(rows) == 2 else rows * 2):
                hidden = torch.ones(100 + generated, dtype=torch.bool)
                hidden[slots] = False
                spoilt.keys[layer][: 100 + generated][hidden, head] = torch.nan
    assert spoilt.asked == [[]] * LAYERS


class OneLayer:
    """A layer of two KV heads with two query heads each, whose probabilities the test makes up."""

    def __init__(self, prompt: int) -> None:
        self.policy = H2oPolicy(PARAMS, num_layers=1).begin(plain_facts(prompt, num_layers=1))
        self.prompt = prompt

    def step(self, generated: int, drawn: dict[tuple[int, int], float]) -> Selection | None:
        """`drawn`: probability by query head and slot; all others draw nothing."""
        length = self.prompt + generated
        step = self.policy.step(generated=generated)
        selection = step.select(0, torch.zeros(4, 8), FakeKv(torch.zeros(length, 2, 8)))
        whole = torch.arange(length).expand(2, -1)
        slots = whole if selection is None else selection.units_RU
        probs = torch.zeros(4, slots.shape[1])
        for (head, slot), probability in drawn.items():
            probs[head, slots[head // 2] == slot] = probability
        step.observe(0, probs)
        step.commit()
        return selection


def test_heavy_slots_are_those_that_a_kv_heads_query_heads_drew_on_together():
    layer = OneLayer(prompt=100)
    # In KV head 0, 36 slots weigh 0.10 by one query head; slot 77 weighs 0.12 by two of them.
    flat = {(0, slot): 0.10 for slot in range(36)}
    layer.step(1, {**flat, (0, 77): 0.06, (1, 77): 0.06, (3, 55): 0.01})
    selection = layer.step(2, {})
    assert selection is not None
    last = list(range(90, 102))
    assert selection.units_RU[0].tolist() == [*range(35), 77, *last]
    # KV head 1: the only slot that drew anything, then ties, which the lower slots win.
    assert selection.units_RU[1].tolist() == [*range(35), 55, *last]
    assert selection.unit == 1
    assert selection.visible == 48


def test_weights_add_up_over_steps_in_reading_order():
    layer = OneLayer(prompt=100)
    layer.step(1, {(0, slot): 0.10 for slot in range(54, 90)})
    # Slot 54 stays the lightest unless it is fed; then slot 55 falls out first.
    layer.step(2, {(0, 54): 0.02})
    selection = layer.step(3, {(0, 91): 0.5, (1, 91): 0.5})
    assert selection is not None
    # Slot 90 left the last twelve without having drawn anything.
    assert selection.units_RU[0].tolist() == [*range(54, 90), *range(91, 103)]
    # Slot 91 leaves them too, but is heavy, and of the equally light ones the highest goes.
    selection = layer.step(4, {})
    assert selection is not None
    assert selection.units_RU[0].tolist() == [*range(54, 89), 91, *range(92, 104)]


@pytest.mark.parametrize("generated", [1, 2, 28, 29, 30])
@pytest.mark.parametrize("prompt", [20, 100])
def test_a_step_that_failed_leaves_nothing_behind(prompt, generated):
    facts = plain_facts(prompt, num_layers=LAYERS)
    row, spoilt = GrowingRow(facts, steps=60), GrowingRow(facts, steps=60, seed=9)
    untouched, tried = POLICY.begin(facts), POLICY.begin(facts)
    for before in range(1, generated):
        row.step(untouched, before)
        row.step(tried, before)
    spoilt.step(tried, generated, commit=False)
    for after in range(generated, 61):
        assert row.step(tried, after) == row.step(untouched, after)


def test_a_layer_of_a_pruned_prompt_is_judged_by_its_own_length():
    facts = mixed_facts(90, slots=20, num_layers=LAYERS)
    row, policy = GrowingRow(facts, steps=30), POLICY.begin(facts)
    for generated in range(1, 29):
        read = row.step(policy, generated)
        assert read[4] == [list(range(20 + generated))]
        assert {len(slots) for rows in read[:4] for slots in rows} == {91 if generated == 1 else 48}
    assert {len(slots) for rows in row.step(policy, 29) for slots in rows} == {48}


def test_there_is_always_a_recent_slot():
    params = SparsityParams(full_layers=(0,), page_budget=3, recency_pages=1, recent_share=0.001)
    facts = plain_facts(100, num_layers=1)
    row, policy = GrowingRow(facts, steps=9), H2oPolicy(params, num_layers=1).begin(facts)
    for generated in range(1, 10):
        for slots in row.step(policy, generated)[0]:
            assert slots[-1] == 99 + generated


def test_a_row_of_another_model_is_our_mistake():
    with pytest.raises(AssertionError, match="this model"):
        POLICY.begin(plain_facts(10, num_layers=LAYERS + 1))
