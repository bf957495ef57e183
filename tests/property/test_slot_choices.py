"""Slots that TidalDecode and LessIsMore choose, for any scores."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decode_service.sparsity.less_is_more import united
from tests.reference.slot_twins import less_is_more_slots

# Wall time says nothing here: a busy machine pauses any example.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    """Scores of a few heads, with many ties, and how many slots are wanted."""
    slots = draw(st.integers(1, 40))
    value = st.one_of(st.integers(0, 3).map(float), st.floats(0, 1, width=32))
    row = st.lists(value, min_size=slots, max_size=slots)
    return draw(st.lists(row, min_size=1, max_size=5)), draw(st.integers(1, slots))


@unhurried
@given(rankings())
def test_a_union_is_the_twins_union(problem: tuple[list[list[float]], int]) -> None:
    scores, count = problem
    wanted = less_is_more_slots(scores, budget=count, recent=0)
    assert united(torch.tensor(scores), count=count).tolist() == wanted


@unhurried
@given(rankings())
def test_a_larger_union_holds_a_smaller_one(problem: tuple[list[list[float]], int]) -> None:
    scores, count = problem
    whole = set(united(torch.tensor(scores), count=count).tolist())
    assert len(whole) == count
    assert set(united(torch.tensor(scores), count=max(1, count - 1)).tolist()) <= whole


@unhurried
@given(rankings())
def test_every_heads_best_slot_is_in_where_the_heads_fit(
    problem: tuple[list[list[float]], int],
) -> None:
    scores, count = problem
    chosen = united(torch.tensor(scores), count=count).tolist()
    for row in scores[:count]:
        assert row.index(max(row)) in chosen
