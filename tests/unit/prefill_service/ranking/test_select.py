"""Selection: budget, window, protection, ties."""

import math
from dataclasses import replace

import pytest
import torch

from prefill_service.ranking.select import (
    attention_mass,
    cache_rows,
    count_by_mass,
    kept_by_mass,
    select_positions,
)
from shared.types.methods import KvSelect, PruningParams


def chosen(scores: list[float], *, length: int, kept: int, protect: bool = False) -> list[int]:
    rows = select_positions(
        torch.tensor([scores]), prompt_tokens=length, kept_tokens=kept, protect_first=protect
    )
    assert rows.dtype is torch.int64
    return list(rows[0].tolist())


def test_highest_scores_and_window() -> None:
    assert chosen([0.1, 0.9, 0.2, 0.8], length=6, kept=4) == [1, 3, 4, 5]


def test_ties_go_to_the_lower_position() -> None:
    assert chosen([0.5] * 6, length=8, kept=5) == [0, 1, 2, 6, 7]
    assert chosen([0.1, 0.5, 0.5, 0.5, 0.9], length=6, kept=4) == [1, 2, 4, 5]


def test_protection_takes_the_lowest_ranked_place() -> None:
    scores = [0.0, 0.9, 0.8, 0.7]
    assert chosen(scores, length=5, kept=4, protect=False) == [1, 2, 3, 4]
    assert chosen(scores, length=5, kept=4, protect=True) == [0, 1, 2, 4]


def test_protection_changes_nothing_when_token_0_is_chosen_anyway() -> None:
    scores = [0.95, 0.9, 0.8, 0.7]
    assert chosen(scores, length=5, kept=3, protect=True) == [0, 1, 4]


def test_protection_of_the_only_place() -> None:
    assert chosen([0.0, 0.9], length=4, kept=3, protect=True) == [0, 2, 3]


def test_protection_leaves_the_scores_alone() -> None:
    scores = torch.tensor([[0.0, 0.9, 0.8]])
    select_positions(scores, prompt_tokens=4, kept_tokens=2, protect_first=True)
    assert torch.equal(scores, torch.tensor([[0.0, 0.9, 0.8]]))


def test_keep_all() -> None:
    assert chosen([0.3, 0.2], length=4, kept=4) == [0, 1, 2, 3]
    assert chosen([], length=3, kept=3) == [0, 1, 2]


def test_nan_ranks_last() -> None:
    assert chosen([math.nan, 0.1, 0.2], length=4, kept=3) == [1, 2, 3]
    assert chosen([math.nan] * 3, length=4, kept=2) == [0, 3]


def test_rows_are_independent() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.2, 0.9]])
    rows = select_positions(scores, prompt_tokens=4, kept_tokens=2, protect_first=False)
    assert rows.tolist() == [[0, 3], [2, 3]]


def test_cache_rows() -> None:
    scores_GC = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert cache_rows(scores_GC, KvSelect.HEAD) is scores_GC
    assert cache_rows(scores_GC, KvSelect.LAYER).tolist() == [[4.0, 7.0]]
    with pytest.raises(AssertionError, match="pruning score"):
        cache_rows(scores_GC, KvSelect.SHARED)


def test_budget_without_room_for_a_candidate_is_our_defect() -> None:
    with pytest.raises(AssertionError, match="window"):
        chosen([0.1, 0.2], length=10, kept=8)


def protected(scores: list[float], positions: list[int], *, length: int, kept: int) -> list[int]:
    rows = select_positions(
        torch.tensor([scores]),
        prompt_tokens=length,
        kept_tokens=kept,
        protect_first=False,
        protected_P=torch.tensor(positions, dtype=torch.int64),
    )
    return list(rows[0].tolist())


def test_protected_positions_take_the_lowest_ranked_places() -> None:
    scores = [0.9, 0.8, 0.7, 0.0, 0.1]
    assert protected(scores, [], length=6, kept=4) == [0, 1, 2, 5]
    assert protected(scores, [3], length=6, kept=4) == [0, 1, 3, 5]
    assert protected(scores, [3, 4, 1], length=6, kept=4) == [1, 3, 4, 5]


def test_protected_positions_of_the_window_cost_nothing() -> None:
    assert protected([0.1, 0.9, 0.8], [3, 4], length=5, kept=3) == [1, 3, 4]


def test_no_score_displaces_a_protected_position() -> None:
    assert protected([math.inf, math.inf, 0.0], [2], length=4, kept=2) == [2, 3]


def test_too_many_protected_positions_are_our_defect() -> None:
    with pytest.raises(AssertionError, match="protected"):
        protected([0.1, 0.2, 0.3], [0, 1], length=4, kept=2)


def test_mass_weighs_layers_alike_and_ignores_what_is_negative() -> None:
    strong = torch.tensor([[30.0, 0.0], [60.0, 10.0]])
    weak = torch.tensor([[0.0, 0.2], [-9.0, 0.2]])
    assert attention_mass([strong]).tolist() == pytest.approx([0.9, 0.1])
    assert attention_mass([strong, weak]).tolist() == pytest.approx([0.45, 0.55])
    assert attention_mass([torch.zeros(2, 3)]).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("share", "count"), [(0.4, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.95, 3), (1.0, 4)]
)
def test_count_by_mass_follows_the_ranking(share: float, count: int) -> None:
    ranking = torch.tensor([2.0, 4.0, 1.0, 3.0])
    mass = torch.tensor([0.15, 0.5, 0.05, 0.3])
    assert count_by_mass(ranking, mass, share=share) == count


def test_count_without_mass_or_candidates() -> None:
    assert count_by_mass(torch.ones(3), torch.zeros(3), share=0.5) == 1
    assert count_by_mass(torch.ones(0), torch.zeros(0), share=0.5) == 0


def test_mass_of_what_is_kept_anyway_counts_for_nothing() -> None:
    scores_GC = torch.tensor([[90.0, 4.0, 3.0, 2.0, 1.0]])
    params = PruningParams(
        pruning_layer=0, mass=0.6, min_rate=0.01, max_rate=1.0, observation_window=1
    )

    def kept(protected: list[int], *, first: bool) -> int:
        return kept_by_mass(
            replace(params, protect_first=first),
            scores_C=scores_GC[0],
            layer_scores=[scores_GC],
            prompt_tokens=6,
            protected_P=torch.tensor(protected, dtype=torch.int64),
        )

    assert kept([], first=False) == 2, "token 0 alone holds it; and the window"
    assert kept([], first=True) == 4, "4 + 3 of the other 10; token 0; the window"
    assert kept([1, 4], first=True) == 5, "3 of the other 5, and all that is protected"
    assert kept([1, 2, 3], first=True) == 5, "bounded: one is dropped"


def test_nan_neither_counts_nor_ranks() -> None:
    scores = torch.tensor([math.nan, 2.0, 1.0])
    assert attention_mass([scores[None]]).tolist() == pytest.approx([0.0, 2 / 3, 1 / 3])
    assert count_by_mass(scores, torch.tensor([0.0, 0.6, 0.4]), share=0.5) == 1
