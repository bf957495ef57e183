"""A score written at a position must land in the page that holds that position, or nowhere."""

import random

import pytest
import torch

from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.score_board import ScoreBoard
from shared.types.kv_manifest import PositionKind

L, GENERATED = 100, 5
IDENTITY = KvLayout(kind=PositionKind.IDENTITY, slots=L, positions_RN=None)
GENERATOR = random.Random(3)


def some_positions(count: int) -> list[int]:
    return sorted(GENERATOR.sample(range(L), count))


SHARED = KvLayout(
    kind=PositionKind.SHARED, slots=40, positions_RN=torch.tensor([some_positions(40)])
)
PER_HEAD = KvLayout(
    kind=PositionKind.PER_HEAD,
    slots=37,
    positions_RN=torch.tensor([some_positions(37), some_positions(37)]),
)


def new_board() -> ScoreBoard:
    return ScoreBoard(prompt_tokens=L, num_positions=L + GENERATED, device=torch.device("cpu"))


def pages_holding(layout: KvLayout, position: int) -> set[int]:
    if position >= L:
        return {(layout.slots + position - L) // 16}
    if layout.positions_RN is None:
        return {position // 16}
    return {
        head.tolist().index(position) // 16
        for head in layout.positions_RN
        if position in head.tolist()
    }


@pytest.mark.parametrize("target", [IDENTITY, SHARED, PER_HEAD], ids=["identity", "shared", "head"])
@pytest.mark.parametrize("position", range(L + GENERATED))
def test_a_one_hot_score_lands_in_the_page_of_its_position_or_nowhere(
    target: KvLayout, position: int
) -> None:
    board = new_board()
    scores_GT = torch.zeros(2, L + GENERATED)
    scores_GT[:, position] = 0.5
    board.write(IDENTITY, scores_GT)
    scores_P = board.page_scores(target)
    assert scores_P.shape == (-(-(target.slots + GENERATED) // 16),)
    hit = {page for page, score in enumerate(scores_P.tolist()) if score}
    assert hit == pages_holding(target, position)
    assert all(score in {0.0, 0.5} for score in scores_P.tolist())


def test_a_later_write_overwrites_what_it_holds_and_leaves_the_rest() -> None:
    board = new_board()
    board.write(IDENTITY, torch.full((2, L + GENERATED), 0.25))
    board.write(SHARED, torch.full((2, 40 + GENERATED), 0.125))
    assert SHARED.positions_RN is not None
    held = set(SHARED.positions_RN[0].tolist()) | set(range(L, L + GENERATED))
    for position, score in enumerate(board.scores_X.tolist()):
        assert score == (0.125 if position in held else 0.25)


def test_positions_that_nobody_held_score_nothing() -> None:
    board = new_board()
    board.write(SHARED, torch.ones(2, 40 + GENERATED))
    assert float(board.scores_X.sum()) == 40 + GENERATED


def test_heads_that_hold_a_position_compete_by_the_maximum_even_against_an_older_larger_score() -> (
    None
):
    board = new_board()
    board.write(IDENTITY, torch.ones(2, L + GENERATED))
    scores_GT = torch.zeros(2, 37 + GENERATED)
    scores_GT[0], scores_GT[1] = 0.25, 0.5
    board.write(PER_HEAD, scores_GT)
    assert PER_HEAD.positions_RN is not None
    first, second = (set(head.tolist()) for head in PER_HEAD.positions_RN)
    for position in range(L):
        wanted = 0.5 if position in second else 0.25 if position in first else 1.0
        assert float(board.scores_X[position]) == wanted
    assert board.scores_X[L:].tolist() == [0.5] * GENERATED


def test_a_page_of_a_per_head_layout_takes_the_largest_sum_among_its_heads() -> None:
    rows = torch.tensor([list(range(16)), list(range(16, 32))])
    layout = KvLayout(kind=PositionKind.PER_HEAD, slots=16, positions_RN=rows)
    board = new_board()
    board.scores_X[:16] = 0.25
    board.scores_X[16:32] = 0.125
    assert board.page_scores(layout).tolist() == [4.0, 0.0]
