"""Page scores, the score board and its projection against slow twins and the policy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.kernels.page_scores import Board, PositionMaps, project_scores, score_pages
from decode_service.kernels.split_plan import SplitPlan
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.page_scores import page_sums
from decode_service.sparsity.score_board import ScoreBoard
from shared.kv.geometry import pages_for
from shared.types.kv_manifest import PositionKind
from tests.support.kernel_rows import DEVICE, PagedRows, attend, make_rows, poisoned_dump
from tests.unit.decode_service.kernels.slow_page_scores import slow_page_sums, slow_token_scores

FLOAT16_ERROR = 5e-3
"""Relative; logits of a few units, kept with 11 bits."""


def maps_of(layouts: list[KvLayout], prompts: list[int]) -> PositionMaps:
    width = max(1, *(layout.slots for layout in layouts))
    positions = torch.full((len(layouts), width), -1, dtype=torch.int32)
    for row, layout in enumerate(layouts):
        if layout.positions_RN is not None:
            positions[row, : layout.slots] = layout.positions_RN[0].int()
    return PositionMaps(
        positions_BC=positions.to(DEVICE),
        slots_B=torch.tensor([layout.slots for layout in layouts], dtype=torch.int32).to(DEVICE),
        prompt_B=torch.tensor(prompts, dtype=torch.int32).to(DEVICE),
    )


def layout_of(prompt: int, kept: list[int] | None) -> KvLayout:
    if kept is None:
        return KvLayout(kind=PositionKind.IDENTITY, slots=prompt, positions_RN=None)
    return KvLayout(
        kind=PositionKind.SHARED, slots=len(kept), positions_RN=torch.tensor([sorted(kept)])
    )


def scored(rows: PagedRows, plan: SplitPlan, board: Board | None = None) -> torch.Tensor:
    """Page scores [B, U]; NaN where nothing was written."""
    dump = poisoned_dump(rows, plan)
    output = attend(rows, plan, dump=dump)
    scores = torch.full(rows.tables.pages_BM.shape, torch.nan, device=DEVICE)
    score_pages(
        dump, output.lse_BH, rows.tables.lengths_B, plan=plan, scores_BU=scores, board=board
    )
    return scores


def assert_scores(rows: PagedRows, scores: torch.Tensor) -> None:
    for row, length in enumerate(rows.lengths):
        pages = pages_for(length)
        assert scores[row, pages:].isnan().all(), "a page that the row does not have was written"
        if length:
            wanted = slow_page_sums(slow_token_scores(rows, row))
            torch.testing.assert_close(
                scores[row, :pages].double(), wanted, atol=1e-6, rtol=FLOAT16_ERROR
            )


@pytest.mark.parametrize(
    ("lengths", "kv_heads", "group", "splits", "block"),
    [
        pytest.param((1, 15, 16), 1, 1, 1, 16, id="one page"),
        pytest.param((17, 0, 33), 2, 3, 2, 16, id="6 heads padded, a row of no tokens"),
        pytest.param((200, 31), 1, 7, 4, 32, id="several pieces"),
        pytest.param((600,), 1, 8, 3, 64, id="several tiles"),
    ],
)
def test_page_scores_equal_the_slow_twin(lengths, kv_heads, group, splits, block):
    rows = make_rows(lengths, kv_heads=kv_heads, group=group, head_dim=16)
    assert_scores(rows, scored(rows, SplitPlan(splits=splits, block=block)))


def test_what_all_logits_share_costs_no_precision():
    # Logits of about 1,000: float16 alone would keep them to the nearest unit.
    rows = make_rows((120,), kv_heads=1, group=3, head_dim=16, key_bias=4000.0)
    assert_scores(rows, scored(rows, SplitPlan(splits=2, block=16)))


def test_board_and_projection_equal_the_policys():
    prompts, generated = [40, 64, 9], [5, 0, 8]
    kept = [[0, 3, 4, 17, 18, 39], list(range(0, 64, 3)), None]
    writers = [layout_of(prompt, None) for prompt in prompts]
    writers[1] = layout_of(64, list(range(1, 64, 2)))
    readers = [layout_of(prompt, keep) for prompt, keep in zip(prompts, kept, strict=True)]
    lengths = tuple(w.slots + new for w, new in zip(writers, generated, strict=True))
    rows = make_rows(lengths, kv_heads=2, group=3, head_dim=16)
    width = max(prompt + new for prompt, new in zip(prompts, generated, strict=True))
    board_BX = torch.zeros((3, width), device=DEVICE)
    plan = SplitPlan(splits=2, block=16)
    scored(rows, plan, Board(scores_BX=board_BX, maps=maps_of(writers, prompts)))

    read_lengths = [r.slots + new for r, new in zip(readers, generated, strict=True)]
    scores = torch.full((3, 8), torch.nan, device=DEVICE)
    project_scores(
        Board(scores_BX=board_BX, maps=maps_of(readers, prompts)),
        torch.tensor(read_lengths, dtype=torch.int32, device=DEVICE),
        scores_BU=scores,
    )
    for row, prompt in enumerate(prompts):
        board = ScoreBoard(
            prompt_tokens=prompt,
            num_positions=prompt + generated[row],
            device=torch.device("cpu"),
        )
        board.write(writers[row], slow_token_scores(rows, row).float().cpu()[None])
        torch.testing.assert_close(
            board_BX[row, : prompt + generated[row]].cpu(),
            board.scores_RX[0],
            atol=1e-6,
            rtol=FLOAT16_ERROR,
        )
        wanted = page_sums(board.slot_scores(readers[row]))[0]
        torch.testing.assert_close(
            scores[row, : len(wanted)].cpu(), wanted, atol=1e-6, rtol=FLOAT16_ERROR
        )
        assert scores[row, len(wanted) :].isnan().all()


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_projection_of_any_layout(data):
    prompt = data.draw(st.integers(1, 60), label="prompt")
    kept = data.draw(st.sets(st.integers(0, prompt - 1), min_size=1), label="kept")
    generated = data.draw(st.integers(0, 20), label="generated")
    layout = layout_of(prompt, sorted(kept))
    board_X = torch.rand(prompt + generated, generator=torch.Generator().manual_seed(prompt))
    length = layout.slots + generated
    scores = torch.full((1, 6), torch.nan, device=DEVICE)
    project_scores(
        Board(scores_BX=board_X[None].to(DEVICE), maps=maps_of([layout], [prompt])),
        torch.tensor([length], dtype=torch.int32, device=DEVICE),
        scores_BU=scores,
    )
    slots = [*sorted(kept), *range(prompt, prompt + generated)]
    wanted = slow_page_sums(board_X[slots])
    torch.testing.assert_close(scores[0, : len(wanted)].cpu(), wanted, atol=1e-6, rtol=1e-5)
    assert scores[0, len(wanted) :].isnan().all()
