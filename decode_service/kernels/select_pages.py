"""Chooses the pages of every row by score, in one launch: no sort, no copy, no wait.

The rule is `sparsity.page_scores.top_pages`: page 0 and the last pages are forced, ties go to the
lower page, a score that is not a number never wins. One program looks at all scores of a row. It
finds the score of the last page that fits bit by bit, in an integer form of floats that sorts as
they do, and writes the pages at or above it in ascending order, so that a partial last page stays
last.

Shapes: R rows, U pages of a row, M table width, K capacity of a choice.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE

MOST_PAGES = 16_384
"""Pages of a row whose scores one program holds in its registers: 262,144 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Budgets:
    """What each row may read."""

    pages_R: Tensor
    """Most pages, int32, forced ones included; at least the recent pages and two."""
    recency_R: Tensor
    """Last pages that are forced, int32, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenPages:
    """A choice as `paged_attention` reads it."""

    pages_RK: Tensor
    """Physical pages, int32, ascending in logical order; entries beyond a row's own are left."""
    visible_R: Tensor
    """Tokens in them, int32."""


def select_pages(
    scores_RU: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    *,
    budgets: Budgets,
    chosen: ChosenPages,
) -> None:
    """Writes each row's choice into `chosen`; a row that its budget covers keeps all its pages.

    Args:
        scores_RU: float32; columns beyond a row's pages may hold anything.
        table_RM: physical pages of each row, int32.
        lengths_R: tokens of each row, int32.
        budgets: of each row; none above K.
        chosen: is overwritten.

    Raises:
        ConfigError: rows of more pages than one program can rank.
    """
    rows, pages = scores_RU.shape
    if pages > MOST_PAGES:
        raise ConfigError(
            f"a row may have {pages} pages, and the Triton selection ranks {MOST_PAGES}: shorten "
            "the longest context or use the torch backend"
        )
    block = triton.next_power_of_2(pages)
    _select_row[(rows,)](
        scores_RU,
        table_RM,
        lengths_R,
        budgets.pages_R,
        budgets.recency_R,
        chosen.pages_RK,
        chosen.visible_R,
        scores_RU.stride(0),
        table_RM.stride(0),
        chosen.pages_RK.stride(0),
        BLOCK=block,
        PAGE=PAGE_SIZE,
        num_warps=max(1, min(16, block // 256)),
    )


@triton.jit
def _ordered(score):
    """Integers that sort as the floats do: -inf for what is no number, 0.0 for both zeros."""
    score = tl.where(score == score, score, -float("inf"))  # noqa: PLR0124 - false for NaN alone
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _select_row(
    scores_ptr,
    table_ptr,
    lengths_ptr,
    budget_ptr,
    recency_ptr,
    chosen_ptr,
    visible_ptr,
    scores_stride,
    table_stride,
    chosen_stride,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
):
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    num_pages = tl.cdiv(length, PAGE)
    wanted = tl.minimum(tl.load(budget_ptr + row), num_pages)
    recency = tl.load(recency_ptr + row)
    u = tl.arange(0, BLOCK)
    there = u < num_pages
    score = tl.load(scores_ptr + row * scores_stride + u, mask=there, other=0.0)
    forced = (u == 0) | (u >= num_pages - recency)
    key = _ordered(tl.where(forced, float("inf"), score))
    # Below the key of -inf, so that no page that is not there is ever counted.
    least = -2147483648
    key = tl.where(there, key, least)
    bar = tl.full([], least, tl.int32)
    if wanted < num_pages:
        # The highest bar that `wanted` pages reach, from the sign bit downwards.
        bar = tl.where(tl.sum((key >= 0).to(tl.int32), 0) >= wanted, 0, bar)
        for step in range(31):
            higher = bar | (1 << (30 - step))
            bar = tl.where(tl.sum((key >= higher).to(tl.int32), 0) >= wanted, higher, bar)
    above = there & (key > bar)
    level = there & (key == bar)
    room = wanted - tl.sum(above.to(tl.int32), 0)
    selected = above | (level & (tl.cumsum(level.to(tl.int32), 0) <= room))
    place = tl.cumsum(selected.to(tl.int32), 0) - 1
    page = tl.load(table_ptr + row * table_stride + u, mask=selected, other=0)
    tl.store(chosen_ptr + row * chosen_stride + place, page, mask=selected)
    left_out = num_pages - wanted
    tl.store(visible_ptr + row, length - left_out * PAGE)
