import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_service.sparsity.page_scores import page_sums, token_scores, top_pages


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
