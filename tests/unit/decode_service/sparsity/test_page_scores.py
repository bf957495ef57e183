import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_service.sparsity.page_scores import (
    page_sums,
    pages_for_mass,
    token_scores,
    top_pages,
)


def test_token_scores_take_the_largest_probability_of_a_kv_heads_queries() -> None:
    probs_GRT = torch.tensor([[[0.1, 0.9], [0.6, 0.4]], [[0.5, 0.5], [0.2, 0.8]]])
    assert token_scores(probs_GRT).tolist() == torch.tensor([[0.6, 0.9], [0.5, 0.8]]).tolist()


def test_a_partial_last_page_sums_fewer_terms() -> None:
    sums = page_sums(torch.ones(35))
    assert sums.tolist() == [16.0, 16.0, 3.0]


def test_whole_pages_need_no_padding() -> None:
    assert page_sums(torch.ones(2, 32)).tolist() == [[16.0, 16.0], [16.0, 16.0]]


def test_first_and_recent_pages_are_forced_and_the_best_others_fill_the_budget() -> None:
    scores_P = torch.tensor([0.0, 0.1, 0.9, 0.3, 0.8, 0.0, 0.0, 0.0])
    assert top_pages(scores_P, budget=5, recency=2).tolist() == [0, 2, 4, 6, 7]


def test_ties_go_to_the_lower_page() -> None:
    assert top_pages(torch.zeros(100), budget=7, recency=3).tolist() == [0, 1, 2, 3, 97, 98, 99]


def test_a_score_that_is_not_a_number_never_wins() -> None:
    scores_P = torch.tensor([1.0, torch.nan, 0.2, torch.nan, 0.1, 0.0, 0.0])
    assert top_pages(scores_P, budget=4, recency=1).tolist() == [0, 2, 4, 6]


def test_infinite_scores_do_not_push_out_a_forced_page() -> None:
    scores_P = torch.full((9,), torch.inf)
    assert {0, 7, 8} <= set(top_pages(scores_P, budget=4, recency=2).tolist())


def test_the_scores_are_left_alone() -> None:
    scores_P = torch.rand(20)
    before = scores_P.clone()
    top_pages(scores_P, budget=6, recency=2)
    assert torch.equal(scores_P, before)


@given(
    scores=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60),
    recency=st.integers(1, 6),
    spare=st.integers(0, 20),
)
def test_selection_is_sorted_unique_exact_and_best(
    scores: list[float], recency: int, spare: int
) -> None:
    budget = recency + 2 + spare
    pages = top_pages(torch.tensor(scores), budget=budget, recency=recency).tolist()
    count = len(scores)
    assert pages == sorted(set(pages))
    assert len(pages) == min(count, budget)
    forced = {0, *range(max(0, count - recency), count)}
    assert forced <= set(pages)
    chosen = [(-scores[p], p) for p in pages if p not in forced]
    dropped = [(-scores[p], p) for p in range(count) if p not in pages]
    assert not chosen or not dropped or max(chosen) < min(dropped)


def test_every_row_is_chosen_for_itself() -> None:
    scores_RP = torch.tensor([[0.0, 0.1, 0.9, 0.3, 0.0, 0.0], [0.0, 0.8, 0.1, 0.7, 0.0, 0.0]])
    pages = top_pages(scores_RP, budget=4, recency=1)
    assert pages.tolist() == [[0, 2, 3, 5], [0, 1, 3, 5]]
    assert top_pages(scores_RP, budget=6, recency=1).tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("mass", "count"), [(0.1, 3), (0.5, 3), (0.75, 4), (0.8, 5), (0.9, 6), (1.0, 7)]
)
def test_the_fewest_pages_that_hold_a_share_include_the_forced_ones(
    mass: float, count: int
) -> None:
    eighths = torch.tensor([2.0, 0.0, 1.0, 2.0, 0.5, 0.5, 1.5, 0.5]) / 8
    # Forced: page 0 and the last two, 4 eighths; then 2, 1, and twice a half.
    assert pages_for_mass(eighths, mass=mass, recency=2) == count


def test_the_share_is_held_in_every_row_and_what_is_no_number_holds_nothing() -> None:
    scores_RP = torch.tensor([[1.0, 0.0, 0.0, torch.nan, 1.0], [0.25, 0.25, 0.25, 0.0, 0.25]])
    assert pages_for_mass(scores_RP[:1], mass=0.9, recency=1) == 2
    assert pages_for_mass(scores_RP, mass=0.9, recency=1) == 4


@given(
    scores=st.lists(st.integers(0, 50), min_size=4, max_size=60),
    recency=st.integers(1, 3),
    mass=st.sampled_from([0.01, 0.25, 0.5, 0.75, 1.0]),
)
def test_no_smaller_choice_holds_the_share(scores: list[int], recency: int, mass: float) -> None:
    scores_P = torch.tensor(scores, dtype=torch.float32)
    count = pages_for_mass(scores_P, mass=mass, recency=recency)

    def held(budget: int) -> int:
        return sum(
            scores[page] for page in top_pages(scores_P, budget=budget, recency=recency).tolist()
        )

    assert recency + 1 <= count <= len(scores)
    assert held(count) >= mass * sum(scores)
    assert count == recency + 1 or held(count - 1) < mass * sum(scores)
