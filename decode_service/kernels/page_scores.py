"""What a Δ-layer makes of its logits: a score a token by position, and a score a page.

A token's score is its largest probability among all query heads of the row, a page's the sum over
its tokens. Probabilities are taken by the log-sum-exp of the merged attention, never of a piece:
pieces of their own would rank differently. The score board keeps a token's score by POSITION, so
that a layer that holds other tokens can rank its own pages (`project_scores`).

Shapes: B rows, H query heads, N pieces, T tokens, U pages, X positions, C slots of a position map.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from decode_service.kernels.paged_attention import LogitDump
from decode_service.kernels.split_plan import SplitPlan, split_tokens
from shared.kv.geometry import PAGE_SIZE

_TOKENS, _TOKENS_OF_FEW_ROWS, _FEW_ROWS = 1024, 256, 8
"""Tokens that one program looks at together; fewer where rows alone do not fill a device."""

_SLOTS = 1024
"""Slots that one program of a projection looks at together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionMaps:
    """Where the slots of each row lie in the prompt, in one layer.

    Slot s of the prompt sits at position `positions_BC[s]`, generated token i at slot `slots` + i
    and position `prompt` + i. A row that holds as many slots as its prompt has tokens holds every
    position, so its part of the map is not read.
    """

    positions_BC: Tensor
    """int32, ascending in each row."""
    slots_B: Tensor
    """Prompt slots of the layer, int32."""
    prompt_B: Tensor
    """Prompt tokens, int32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """Scores by position, and where the slots of one layer lie on them."""

    scores_BX: Tensor
    """float32; the caller clears it at the start of a step."""
    maps: PositionMaps
    """Of the layer that writes or reads."""


def score_pages(
    dump: LogitDump,
    lse_BH: Tensor,
    lengths_B: Tensor,
    *,
    plan: SplitPlan,
    scores_BU: Tensor,
    board: Board | None = None,
) -> None:
    """Scores the pages of every row from the logits of its attention.

    Args:
        dump: logits of the layer.
        lse_BH: log-sum-exp of the whole rows, base 2.
        lengths_B: tokens of each row, int32.
        plan: of the attention that left the dump.
        scores_BU: float32, overwritten where a row has a page, left alone elsewhere.
        board: takes the score of every token by its position; other positions keep theirs.
    """
    rows, heads, capacity = dump.logits_BHT.shape
    tile = _TOKENS if rows >= _FEW_ROWS else _TOKENS_OF_FEW_ROWS
    maps = None if board is None else board.maps
    _score_tile[(triton.cdiv(capacity, tile), rows)](
        dump.logits_BHT,
        dump.offsets_BHN,
        lse_BH,
        lengths_B,
        scores_BU,
        scores_BU if board is None else board.scores_BX,
        lengths_B if maps is None else maps.positions_BC,
        lengths_B if maps is None else maps.slots_B,
        lengths_B if maps is None else maps.prompt_B,
        capacity,
        dump.logits_BHT.stride(1),
        scores_BU.stride(0),
        0 if board is None else board.scores_BX.stride(0),
        0 if maps is None else maps.positions_BC.stride(0),
        HEADS=heads,
        BLOCK=plan.block,
        SPLITS=plan.splits,
        TILE=tile,
        PAGE=PAGE_SIZE,
        BOARD=board is not None,
        num_warps=tile // _TOKENS_OF_FEW_ROWS,
    )


def project_scores(board: Board, lengths_B: Tensor, *, scores_BU: Tensor) -> None:
    """Scores the pages of a layer that holds other tokens than the one that wrote the board.

    Args:
        board: scores by position, with the maps of the layer that is to be served.
        lengths_B: tokens of each row in that layer, int32.
        scores_BU: float32, overwritten where a row has a page, left alone elsewhere.
    """
    maps = board.maps
    rows, pages = scores_BU.shape
    _project_tile[(triton.cdiv(pages * PAGE_SIZE, _SLOTS), rows)](
        board.scores_BX,
        lengths_B,
        maps.positions_BC,
        maps.slots_B,
        maps.prompt_B,
        scores_BU,
        board.scores_BX.stride(0),
        maps.positions_BC.stride(0),
        scores_BU.stride(0),
        TILE=_SLOTS,
        PAGE=PAGE_SIZE,
        num_warps=4,
    )


@triton.jit
def _positions(row, t, inside, maps):
    """Positions of slots of one row; its map is not read where it would say slot = position.

    `maps` is (positions, stride of a row, slots, prompt), as `PositionMaps` holds them.
    """
    positions_ptr, stride, slots_ptr, prompt_ptr = maps
    slots, prompt = tl.load(slots_ptr + row), tl.load(prompt_ptr + row)
    mapped = inside & (t < slots) & (slots != prompt)
    listed = tl.load(positions_ptr + row * stride + t, mask=mapped, other=0)
    return tl.where(mapped, listed, t - slots + prompt)


@triton.jit
def _store_page_sums(scores_ptr, score, first, length, TILE: tl.constexpr, PAGE: tl.constexpr):
    """Sums each page of a tile of token scores; slots beyond the row count as 0."""
    sums = tl.sum(tl.reshape(score, [TILE // PAGE, PAGE]), 1)
    page = first // PAGE + tl.arange(0, TILE // PAGE)
    tl.store(scores_ptr + page, sums, mask=page * PAGE < length)


@triton.jit
def _score_tile(
    logits_ptr,
    offsets_ptr,
    lse_ptr,
    lengths_ptr,
    scores_ptr,
    board_ptr,
    positions_ptr,
    slots_ptr,
    prompt_ptr,
    capacity,
    logits_stride,
    scores_stride,
    board_stride,
    positions_stride,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    BOARD: tl.constexpr,
):
    row = tl.program_id(1)
    first = tl.program_id(0) * TILE
    length = tl.load(lengths_ptr + row)
    if first >= length:
        return
    t = first + tl.arange(0, TILE)
    inside = t < length
    piece = t // split_tokens(length, SPLITS, BLOCK)
    score = tl.zeros([TILE], tl.float32)
    # Head by head, so that what heads share is computed once and each reads one run of logits. The
    # mask is that of the memory, whose end is a multiple of what is read at once; a row's is not.
    held = t < capacity
    for h in tl.static_range(HEADS):
        head = row * HEADS + h
        logits = logits_ptr + head.to(tl.int64) * logits_stride
        logit = tl.load(logits + t, mask=held, other=0.0).to(tl.float32)
        logit = tl.where(inside, logit, -float("inf"))
        offset = tl.load(offsets_ptr + head * SPLITS + piece, mask=inside, other=0.0)
        score = tl.maximum(score, tl.exp2(logit + (offset - tl.load(lse_ptr + head))))
    if BOARD:
        maps = (positions_ptr, positions_stride, slots_ptr, prompt_ptr)
        at_position = _positions(row, t, inside, maps)
        tl.store(board_ptr + row * board_stride + at_position, score, mask=inside)
    _store_page_sums(scores_ptr + row * scores_stride, score, first, length, TILE, PAGE)


@triton.jit
def _project_tile(
    board_ptr,
    lengths_ptr,
    positions_ptr,
    slots_ptr,
    prompt_ptr,
    scores_ptr,
    board_stride,
    positions_stride,
    scores_stride,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
):
    row = tl.program_id(1)
    first = tl.program_id(0) * TILE
    length = tl.load(lengths_ptr + row)
    if first >= length:
        return
    t = first + tl.arange(0, TILE)
    inside = t < length
    maps = (positions_ptr, positions_stride, slots_ptr, prompt_ptr)
    at_position = _positions(row, t, inside, maps)
    score = tl.load(board_ptr + row * board_stride + at_position, mask=inside, other=0.0)
    _store_page_sums(scores_ptr + row * scores_stride, score, first, length, TILE, PAGE)
