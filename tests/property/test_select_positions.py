"""Selection holds its promises for any scores."""

from random import Random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_service.ranking.select import select_positions
from shared.types.methods import PruningParams

# Wall time says nothing here: a busy machine pauses any example.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], int, int, bool]:
    """Score rows (with many ties), prompt length, kept count, protection."""
    candidates = draw(st.integers(1, 40))
    window = draw(st.integers(1, 8))
    value = st.one_of(st.integers(0, 3).map(float), st.floats(-1e6, 1e6, width=32))
    row = st.lists(value, min_size=candidates, max_size=candidates)
    rows = draw(st.lists(row, min_size=1, max_size=3))
    kept = draw(st.integers(window + 1, candidates + window))
    return rows, candidates + window, kept, draw(st.booleans())


def run(problem: tuple[list[list[float]], int, int, bool]) -> list[list[int]]:
    rows, length, kept, protect = problem
    positions = select_positions(
        torch.tensor(rows), prompt_tokens=length, kept_tokens=kept, protect_first=protect
    )
    return list(positions.tolist())


@unhurried
@given(problems())
def test_sorted_unique_in_range_exact_count(
    problem: tuple[list[list[float]], int, int, bool],
) -> None:
    _, length, kept, _ = problem
    for row in run(problem):
        assert len(row) == kept
        assert row == sorted(set(row))
        assert row[0] >= 0
        assert row[-1] < length


@unhurried
@given(problems())
def test_window_and_protected_are_kept(problem: tuple[list[list[float]], int, int, bool]) -> None:
    rows, length, _, protect = problem
    for row in run(problem):
        assert set(range(len(rows[0]), length)) <= set(row)
        assert not protect or 0 in row


@unhurried
@given(problems())
def test_no_dropped_candidate_beats_a_kept_one(
    problem: tuple[list[list[float]], int, int, bool],
) -> None:
    rows, _, _, protect = problem
    for scores, kept in zip(torch.tensor(rows).tolist(), run(problem), strict=True):
        chosen = [i for i in kept if i < len(scores) and not (protect and i == 0)]
        dropped = [i for i in range(len(scores)) if i not in kept]
        worst = min(((scores[i], -i) for i in chosen), default=None)
        assert worst is None or all((scores[i], -i) < worst for i in dropped)


@unhurried
@given(problems(), st.data())
def test_protected_positions_are_kept_and_nothing_else_moves(
    problem: tuple[list[list[float]], int, int, bool], data: st.DataObject
) -> None:
    rows, length, kept, protect = problem
    budget = kept - (length - len(rows[0])) - protect
    wanted = data.draw(st.sets(st.integers(0, length - 1), max_size=max(budget, 0)))
    positions = select_positions(
        torch.tensor(rows),
        prompt_tokens=length,
        kept_tokens=kept,
        protect_first=protect,
        protected_P=torch.tensor(sorted(wanted), dtype=torch.int64),
    )
    for scores, chosen in zip(torch.tensor(rows).tolist(), positions.tolist(), strict=True):
        assert wanted <= set(chosen)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == kept
        free = [
            i for i in chosen if i < len(scores) and i not in wanted and not (protect and i == 0)
        ]
        dropped = [i for i in range(len(scores)) if i not in chosen]
        assert all((scores[d], -d) < (scores[f], -f) for d in dropped for f in free)


@unhurried
@given(problems(), st.randoms(use_true_random=False))
def test_follows_a_permutation_of_distinct_scores(
    problem: tuple[list[list[float]], int, int, bool], random: Random
) -> None:
    rows, length, kept, _ = problem
    candidates = len(rows[0])
    scores = [float(i) for i in range(candidates)]
    order = list(range(candidates))
    random.shuffle(order)
    shuffled = [scores[i] for i in order]
    (plain,) = run(([scores], length, kept, False))
    (moved,) = run(([shuffled], length, kept, False))
    assert {order[i] for i in moved if i < candidates} == {i for i in plain if i < candidates}


@unhurried
@given(
    st.integers(1, 20_000),
    st.floats(0.001, 1.0),
    st.integers(1, 64),
    st.integers(0, 4096),
)
def test_kept_count(length: int, rate: float, window: int, floor: int) -> None:
    params = PruningParams(
        pruning_layer=1, keep_rate=rate, observation_window=window, min_keep=floor
    )
    assert params.kept_count(length) == min(length, max(int(rate * length), window + 1, floor))
