"""The four aggregations on numbers small enough to check by hand."""

import pytest
import torch

from prefill_service.ranking.claa import ClaaRanker
from shared.types.methods import Aggregation, PruningParams


def aggregate(how: Aggregation, *layers: list[list[float]]) -> list[float]:
    ranker = ClaaRanker(PruningParams(pruning_layer=3, aggregation=how))
    return list(ranker.aggregate([torch.tensor(layer) for layer in layers]).tolist())


ONE = [[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]]
TWO = [[0.0, 9.0, 0.0], [0.0, 1.0, 0.0]]


def test_sum_max() -> None:
    assert aggregate(Aggregation.SUM_MAX, ONE, TWO) == [1.0, 10.0, 3.0]


def test_rank_max_ties_to_the_lower_index() -> None:
    assert aggregate(Aggregation.RANK_MAX, ONE, TWO) == [1.0, 2.0, 2.0]


def test_zsum_max() -> None:
    ours = aggregate(Aggregation.ZSUM_MAX, [[1.0, 2.0, 3.0]], [[9.0, 0.0, 0.0]])
    assert ours == pytest.approx([1.1547005, 0.0, 1.0], abs=1e-6)


def test_zhead_max_sees_a_single_head() -> None:
    ours = aggregate(Aggregation.ZHEAD_MAX, [[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]])
    assert ours == pytest.approx([1.1547005, 0.0, 1.0], abs=1e-6)


def test_equal_scores_have_no_deviation() -> None:
    assert aggregate(Aggregation.ZSUM_MAX, [[2.0, 2.0, 2.0]]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("how", [Aggregation.ZSUM_MAX, Aggregation.ZHEAD_MAX])
def test_one_candidate_has_no_deviation(how: Aggregation) -> None:
    assert aggregate(how, [[2.0]]) == [0.0]


@pytest.mark.parametrize(
    ("lp", "n", "layers"),
    [(15, 4, [12, 13, 14, 15]), (2, 4, [0, 1, 2]), (0, 4, [0]), (5, 1, [5])],
)
def test_aggregated_layers(lp: int, n: int, layers: list[int]) -> None:
    params = PruningParams(pruning_layer=lp, aggregation_window=n, deferred_layers=4)
    assert list(ClaaRanker(params).aggregated_layers(lp)) == layers
