"""The picture of one layer's reads: its numbers and its colours."""

import io

import numpy as np
import pytest
from matplotlib import image

from loadtest.sparsity.page_strip import PageStrip, draw_strip, page_shares, strip_of

REPORT = {
    "roles": ["full", "delta", "sparse", "delta", "sparse"],
    "steps": [
        {"layers": {"2": [0, 2]}, "unit": {"2": 16}, "refreshed": [1, 3]},
        {"layers": {"2": [[0, 1, 33], [0, 16, 33]]}, "unit": {"2": 1}, "refreshed": [3]},
    ],
}


def test_pages_that_were_read_count_whole_the_last_one_too() -> None:
    assert page_shares([0, 2], unit=16, length=33) == [1.0, 0.0, 1.0]


def test_slots_count_by_their_share_of_the_page() -> None:
    assert page_shares([0, 1, 16, 32], unit=1, length=34) == [2 / 16, 1 / 16, 1 / 2]


def test_heads_that_choose_apart_are_averaged() -> None:
    assert page_shares([[0, 2], [1, 2]], unit=16, length=48) == [0.5, 0.5, 1.0]


def test_a_strip_follows_the_report() -> None:
    strip = strip_of(REPORT, layer=2, prompt_slots=32, recent=1, title="t")
    assert strip.shares == [[1.0, 0.0, 1.0], [1.5 / 16, 0.5 / 16, 0.5]]
    assert strip.refreshed == [True, False]
    assert strip.skips


def test_a_layer_without_a_planner_has_no_marks() -> None:
    steps = [{"layers": {"0": [0]}, "unit": {"0": 16}, "refreshed": [1]}]
    report = {"roles": REPORT["roles"], "steps": steps}
    strip = strip_of(report, layer=0, prompt_slots=1, recent=0, title="t")
    assert strip.refreshed == [False]
    assert not strip.skips


@pytest.mark.parametrize("refreshed", [[True, False, True], [False, False, False]])
def test_the_picture_has_a_colour_for_each_kind_of_page(refreshed: list[bool]) -> None:
    strip = PageStrip(
        layer=4,
        title="delta, K 4, L 1: layer 4",
        shares=[[1.0, 0.0, 1.0, 0.0, 1.0]] * 2 + [[1.0, 1.0, 0.0, 0.0, 0.0, 1.0]],
        refreshed=refreshed,
        recent=1,
        prompt_slots=70,
    )
    pixels = image.imread(io.BytesIO(draw_strip(strip)))[..., :3].reshape(-1, 3)
    for colour in ((0.9, 0.9, 0.9), (0.12, 0.38, 0.72), (0.95, 0.56, 0.17), (0.18, 0.6, 0.32)):
        close = np.abs(pixels - np.array(colour)).max(axis=1) < 0.01
        assert close.sum() > 1000, colour
