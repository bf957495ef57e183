"""A score written at a position must land in the page that holds that position, or nowhere."""

import random

import pytest
import torch

from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.page_scores import page_sums
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


def new_board(*, rows: int = 1) -> ScoreBoard:
    return ScoreBoard(
        rows=rows, prompt_tokens=L, num_positions=L + GENERATED, device=torch.device("cpu")
    )


def page_scores(board: ScoreBoard, layout: KvLayout) -> torch.Tensor:
    return page_sums(board.slot_scores(layout)).amax(dim=0)


def held_by(layout: KvLayout, kv_head: int) -> list[int]:
    """Positions of the slots of a KV head, generated ones included."""
    generated = list(range(L, L + GENERATED))
    if layout.positions_RN is None:
        return list(range(L)) + generated
    head = kv_head if layout.positions_RN.shape[0] > 1 else 0
    held: list[int] = layout.positions_RN[head].tolist()
    return held + generated


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
    scores_P = page_scores(board, target)
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
    for position, score in enumerate(board.scores_RX[0].tolist()):
        assert score == (0.125 if position in held else 0.25)


def test_positions_that_nobody_held_score_nothing() -> None:
    board = new_board()
    board.write(SHARED, torch.ones(2, 40 + GENERATED))
    assert float(board.scores_RX.sum()) == 40 + GENERATED


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
        assert float(board.scores_RX[0, position]) == wanted
    assert board.scores_RX[0, L:].tolist() == [0.5] * GENERATED


def test_a_page_of_a_per_head_layout_takes_the_largest_sum_among_its_heads() -> None:
    rows = torch.tensor([list(range(16)), list(range(16, 32))])
    layout = KvLayout(kind=PositionKind.PER_HEAD, slots=16, positions_RN=rows)
    board = new_board()
    board.scores_RX[0, :16] = 0.25
    board.scores_RX[0, 16:32] = 0.125
    assert page_scores(board, layout).tolist() == [4.0, 0.0]


LAYOUTS = pytest.mark.parametrize(
    ("written", "read"),
    [(a, b) for a in (IDENTITY, SHARED, PER_HEAD) for b in (IDENTITY, SHARED, PER_HEAD)],
    ids=[
        f"{a}-to-{b}"
        for a in ("identity", "shared", "head")
        for b in ("identity", "shared", "head")
    ],
)


@LAYOUTS
@pytest.mark.parametrize(("rows", "heads"), [(2, 2), (2, 4), (4, 4)])
def test_a_row_a_head_keeps_each_heads_own_scores(
    written: KvLayout, read: KvLayout, rows: int, heads: int
) -> None:
    scores = torch.rand(
        heads, written.slots + GENERATED, generator=torch.Generator().manual_seed(4)
    )
    board = new_board(rows=rows)
    board.write(written, scores)
    wanted: list[dict[int, float]] = [{} for _ in range(rows)]
    for head in range(heads):
        of_row = wanted[head * rows // heads]
        held = held_by(written, head * 2 // heads)
        for position, score in zip(held, scores[head].tolist(), strict=True):
            of_row[position] = max(of_row.get(position, 0.0), score)
    got = board.slot_scores(read).tolist()
    assert got == [
        [wanted[row].get(position, 0.0) for position in held_by(read, row * 2 // rows)]
        for row in range(rows)
    ]


@LAYOUTS
def test_query_heads_may_share_one_row(written: KvLayout, read: KvLayout) -> None:
    scores_HT = torch.rand(4, written.slots + GENERATED)
    by_query_head, by_kv_head = new_board(), new_board()
    by_query_head.write(written, scores_HT)
    by_kv_head.write(written, scores_HT.view(2, 2, -1).amax(dim=1))
    assert torch.equal(by_query_head.slot_scores(read), by_kv_head.slot_scores(read))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_layer_without_prompt_slots_holds_generated_tokens_alone(rows: int) -> None:
    empty = KvLayout(
        kind=PositionKind.SHARED, slots=0, positions_RN=torch.zeros(1, 0, dtype=torch.int64)
    )
    board = new_board(rows=rows)
    board.write(empty, torch.full((4, GENERATED), 0.5))
    assert board.slot_scores(empty).tolist() == [[0.5] * GENERATED] * rows
    assert float(board.scores_RX[:, :L].sum()) == 0.0
