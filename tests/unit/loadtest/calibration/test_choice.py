"""The rules of a calibration's choice, on figures made by hand."""

import pytest
import torch

from loadtest.calibration.answers import Agreement
from loadtest.calibration.choice import (
    Candidate,
    allowed_depths,
    best_of,
    candidates_at,
    token_layer_saving,
)
from loadtest.quality.depth_grid import GridScores, SweepGrid
from shared.errors import ConfigError
from shared.types.methods import Aggregation

GRID = SweepGrid(
    windows=(8, 16),
    pools=(7,),
    layer_counts=(1, 2),
    aggregations=(Aggregation.SUM_MAX, Aggregation.RANK_MAX),
)


def scores(rho: float = 0.5, coverage: float | None = 0.5) -> GridScores:
    shape = (2, 1, 2, 2, 4)
    covered = None if coverage is None else torch.full(shape, coverage, dtype=torch.float64)
    return GridScores(rho_WPAMY=torch.full(shape, rho, dtype=torch.float64), coverage_WPAMY=covered)


def candidate(**changes: object) -> Candidate:
    values: dict[str, object] = {
        "pruning_layer": 3,
        "layer_count": 2,
        "window": 8,
        "pool": 7,
        "aggregation": Aggregation.SUM_MAX,
        "rho": 0.5,
        "coverage": 0.5,
        "collapsed": 0,
    }
    return Candidate(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "lp", "rate", "saving"),
    [(32, 15, 0.1, 0.45), (32, 15, 0.2, 0.40), (32, 15, 0.4, 0.30), (30, 17, 0.2, 0.32)],
)
def test_the_saving_is_that_of_the_paper(layers: int, lp: int, rate: float, saving: float) -> None:
    assert token_layer_saving(lp, num_layers=layers, keep_rate=rate) == pytest.approx(saving)


def test_depths_that_save_enough() -> None:
    assert allowed_depths(num_layers=30, keep_rate=0.2, saving_target=0.3) == range(18)
    assert allowed_depths(num_layers=32, keep_rate=0.2, saving_target=0.4) == range(16)
    with pytest.raises(ConfigError, match=r"layer 0 saves 0\.773; lower the saving target"):
        allowed_depths(num_layers=30, keep_rate=0.2, saving_target=0.78)


def test_candidates_of_a_depth_are_sorted_by_collapse_quality_and_cost() -> None:
    found = scores()
    found.rho_WPAMY[1, 0, 1, 1, 3] = 0.9
    best = candidates_at(3, scores=found, grid=GRID, collapsed=[])[0]
    assert (best.window, best.aggregation, best.layer_count) == (16, Aggregation.RANK_MAX, 2)
    assert best.layers == range(2, 4)
    assert best.quality() == pytest.approx(0.7)
    safe = candidates_at(3, scores=found, grid=GRID, collapsed=[2])
    assert (safe[0].layer_count, safe[0].window, safe[0].collapsed) == (1, 8, 0)
    assert safe[-1].collapsed == 1


def test_equal_forms_are_tried_once_and_no_window_begins_before_layer_0() -> None:
    shallow = candidates_at(0, scores=scores(), grid=GRID, collapsed=[])
    assert [(one.layer_count, one.aggregation) for one in shallow] == [(1, Aggregation.SUM_MAX)] * 2
    assert len(candidates_at(1, scores=scores(), grid=GRID, collapsed=[])) == 6


def test_quality_is_the_mean_of_the_measures_that_there_are() -> None:
    one = candidate(rho=0.2, coverage=None)
    assert one.quality() == pytest.approx(0.2)
    assert one.quality(Agreement(first_token=0.6, answers=None)) == pytest.approx(0.4)
    assert candidate(rho=0.2, coverage=0.4).quality(
        Agreement(first_token=0.6, answers=0.8)
    ) == pytest.approx(0.5)


def test_the_best_is_the_surest_and_of_equals_the_cheapest() -> None:
    same = Agreement(first_token=1.0, answers=1.0)
    better = Agreement(first_token=1.0, answers=0.5)
    worse = Agreement(first_token=0.5, answers=0.5)
    deep, shallow = candidate(pruning_layer=3), candidate(pruning_layer=2)
    assert best_of([deep, shallow], [same, same]) == 1
    assert best_of([deep, shallow], [same, better]) == 0
    assert best_of([candidate(collapsed=1), shallow], [same, worse]) == 1
    assert best_of([candidate(pool=25), deep], [same, same]) == 1
    assert best_of([candidate(layer_count=4), deep], [same, same]) == 1
    assert best_of([deep, deep], [same, same]) == 0
