"""The rules that choose full layers, against every set there is and on curves made by hand."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.calibration.delta_choice import (
    check_count,
    expected_recall,
    layers_by_recall,
    layers_by_shift,
    neighbours,
    weighted_recall,
)
from shared.errors import ConfigError


def planner(full_layers: tuple[int, ...], layer: int) -> int:
    """The last full layer at or before a layer."""
    return max(full for full in full_layers if full <= layer)


def worth(full_layers: tuple[int, ...], recall: list[list[float]], weights: list[float]) -> float:
    """The objective, layer by layer."""
    return sum(
        weight * (1.0 if layer in full_layers else recall[planner(full_layers, layer)][layer])
        for layer, weight in enumerate(weights)
    )


def made_up(num_layers: int, seed: int) -> tuple[list[list[float]], list[float]]:
    rng = Random(seed)
    recall = [[rng.random() for _ in range(num_layers)] for _ in range(num_layers)]
    return recall, [rng.random() + 0.01 for _ in range(num_layers)]


@given(st.integers(4, 9), st.data(), st.integers(0, 1000))
def test_no_set_has_a_higher_recall(num_layers: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(3, num_layers - 1))
    recall, weights = made_up(num_layers, seed)
    chosen = layers_by_recall(recall, weights, count=count)
    sets = [(0, 1, 2, *others) for others in combinations(range(3, num_layers - 1), count - 3)]
    assert chosen in sets
    assert worth(chosen, recall, weights) == pytest.approx(
        max(worth(full, recall, weights) for full in sets)
    )
    assert weighted_recall(chosen, recall, weights) == pytest.approx(
        worth(chosen, recall, weights) / sum(weights)
    )


def test_of_equal_sets_the_one_with_smaller_layers_is_chosen() -> None:
    recall = [[0.5] * 8 for _ in range(8)]
    assert layers_by_recall(recall, [1.0] * 8, count=5) == (0, 1, 2, 3, 4)


def test_expected_recall_is_that_of_the_sparse_layers_alone() -> None:
    recall = [[0.0] * 6 for _ in range(6)]
    recall[2][3], recall[4][5] = 0.25, 0.75
    assert expected_recall((0, 1, 2, 4), recall) == 0.5
    assert expected_recall(tuple(range(6)), recall) == 1.0


def test_peaks_are_taken_highest_first_and_apart() -> None:
    shift = [0.0] * 20
    for layer, height in {5: 0.4, 9: 0.9, 10: 0.8, 15: 0.3, 3: 0.7}.items():
        shift[layer] = height
    # Three Δ-layers among 20 stand at least 20 / 6 layers apart: 10 is too near 9, 3 too near 2.
    assert layers_by_shift(shift, count=5) == (0, 1, 2, 9, 15)


def test_without_enough_peaks_the_highest_other_layers_are_taken() -> None:
    # No layer is a peak, and two Δ-layers among 20 stand at least 5 apart.
    falling = [1.0 - layer / 20 for layer in range(20)]
    assert layers_by_shift(falling, count=4) == (0, 1, 2, 7)
    assert len(layers_by_shift([0.0] * 6, count=5)) == 5


@given(st.lists(st.floats(0, 1), min_size=4, max_size=40), st.data())
def test_the_asked_number_of_layers_is_chosen(shift: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(3, len(shift) - 1))
    chosen = layers_by_shift(shift, count=count)
    assert chosen[:3] == (0, 1, 2)
    assert sorted(set(chosen)) == list(chosen)
    assert len(chosen) == count
    assert chosen[-1] < len(shift) - 1


def test_neighbours_move_one_delta_layer_a_little_and_leave_the_first() -> None:
    assert neighbours((0, 1, 2, 4, 8), num_layers=10) == [
        (0, 1, 2, 3, 8),
        (0, 1, 2, 5, 8),
        (0, 1, 2, 6, 8),
        (0, 1, 2, 4, 6),
        (0, 1, 2, 4, 7),
    ]


@pytest.mark.parametrize("count", [0, 2, 6, 7])
def test_a_number_of_layers_that_a_model_cannot_have_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="--full-layers a number from 3 to 5"):
        check_count(count, num_layers=6)
