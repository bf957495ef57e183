"""Single layers that fail as rankers."""

from loadtest.quality.collapse import collapsed_layers


def test_a_layer_far_below_the_best_is_collapsed() -> None:
    assert collapsed_layers([0.5, 0.33, 0.34, -0.1], None) == [1, 3]
    assert collapsed_layers([0.5, 0.33, 0.34, -0.1], [0.2, 0.9, 0.5, 0.7]) == [0, 2]
