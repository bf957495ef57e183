"""Chooses a row's positions by score and writes them in order, in two launches: no sort, no wait.

The fast twin of `ranking.select.select_positions`. One program a row finds the score of the last
position that fits bit by bit, in an integer form of floats that sorts as they do. Then many
programs a row write what lies above it, and of its equals the lowest positions, in ascending order;
each counts what comes before its own stretch, which is cheaper than to hear it from the others. The
length is known before, so that nothing waits for the device.

Shapes: R rows, C candidates, N kept tokens, L prompt tokens, P protected positions.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_BLOCK = 16_384
_MOST_WARPS = 16
_WARP_SCORES = 512
_STRETCH = 1024
"""Positions that one program writes."""
_STRETCH_WARPS = 4


def keep_highest(
    scores_RC: Tensor,
    *,
    prompt_tokens: int,
    kept_tokens: int,
    protect_first: bool,
    protected_P: Tensor | None = None,
) -> Tensor:
    """Positions that each row keeps, ascending, int64 [R, N]; see `select_positions`.

    Args:
        scores_RC: float32, contiguous rows; a NaN ranks last.
        prompt_tokens: L; the L - C tokens after the candidates are always kept.
        kept_tokens: N.
        protect_first: keep position 0 whatever its score.
        protected_P: further positions that are kept, all of them candidates.
    """
    num_rows, candidates = scores_RC.shape
    device = scores_RC.device
    if kept_tokens >= prompt_tokens:
        return torch.arange(prompt_tokens, device=device).expand(num_rows, -1)
    budget = kept_tokens - (prompt_tokens - candidates)
    assert budget >= 1, "the window and one candidate must fit the kept count"
    if protected_P is not None and protected_P.shape[0] > 0:
        assert protected_P.shape[0] <= budget, "the protected positions must fit the kept count"
        finite_RC = scores_RC.nan_to_num(
            nan=-math.inf, posinf=torch.finfo(scores_RC.dtype).max, neginf=-math.inf
        )
        scores_RC = finite_RC.index_fill_(1, protected_P, math.inf)
    kept_RN = torch.empty((num_rows, kept_tokens), dtype=torch.int64, device=device)
    bars_2R = torch.empty((2, num_rows), dtype=torch.int32, device=device)
    block = min(_MOST_BLOCK, triton.next_power_of_2(candidates))
    row = (candidates, budget, scores_RC.stride(0))
    _find_bar[(num_rows,)](
        scores_RC,
        bars_2R,
        *row,
        PROTECT_FIRST=protect_first,
        BLOCK=block,
        IN_REGISTERS=candidates <= block,
        num_warps=max(1, min(_MOST_WARPS, block // _WARP_SCORES)),
    )
    # The tokens after the candidates are a stretch like another.
    _write_stretch[(num_rows, triton.cdiv(candidates, _STRETCH) + 1)](
        scores_RC,
        bars_2R,
        kept_RN,
        *row,
        prompt_tokens,
        PROTECT_FIRST=protect_first,
        STRETCH=_STRETCH,
        num_warps=_STRETCH_WARPS,
    )
    return kept_RN


@triton.jit
def _ordered_block(row_ptr, first, candidates, PROTECT_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Integers that sort as the scores do: -inf for NaN, 0.0 for both zeros; least outside."""
    position = first + tl.arange(0, BLOCK)
    there = position < candidates
    score = tl.load(row_ptr + position, mask=there, other=0.0)
    score = tl.where(score == score, score, -float("inf"))  # noqa: PLR0124 - false for NaN alone
    score = tl.where(score == 0.0, 0.0, score)
    if PROTECT_FIRST:
        # A score of +inf elsewhere is at most equal, and of equals the lowest position is kept.
        score = tl.where(position == 0, float("inf"), score)
    bits = score.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # Below the key of -inf, so that no position that is not there is ever counted.
    return tl.where(there, key, -2147483648)


@triton.jit
def _reaching(
    row_ptr,
    candidates,
    held,
    bar,
    PROTECT_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    IN_REGISTERS: tl.constexpr,
):
    """How many scores are at or above a bar; `held` is the first block, and all of a short row."""
    count = (held >= bar).to(tl.int32)
    if not IN_REGISTERS:
        for first in range(BLOCK, candidates, BLOCK):
            key = _ordered_block(row_ptr, first, candidates, PROTECT_FIRST, BLOCK)
            count += (key >= bar).to(tl.int32)
    return tl.sum(count, 0)


# Lengths differ from prompt to prompt, and none of them is worth a compilation.
@triton.jit(do_not_specialize=["candidates", "budget", "scores_stride"])
def _find_bar(
    scores_ptr,
    bars_ptr,
    candidates,
    budget,
    scores_stride,
    PROTECT_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    IN_REGISTERS: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = scores_ptr + row * scores_stride
    held = _ordered_block(row_ptr, 0, candidates, PROTECT_FIRST, BLOCK)
    # The highest bar that `budget` scores reach, from the sign bit downwards.
    bar = tl.full([], -2147483648, tl.int32)
    reached = _reaching(row_ptr, candidates, held, 0, PROTECT_FIRST, BLOCK, IN_REGISTERS)
    bar = tl.where(reached >= budget, 0, bar)
    for step in range(31):
        higher = bar | (1 << (30 - step))
        reached = _reaching(row_ptr, candidates, held, higher, PROTECT_FIRST, BLOCK, IN_REGISTERS)
        bar = tl.where(reached >= budget, higher, bar)
    # The bar is the key of some score, so it has a successor.
    above = _reaching(row_ptr, candidates, held, bar + 1, PROTECT_FIRST, BLOCK, IN_REGISTERS)
    tl.store(bars_ptr + row, bar)
    tl.store(bars_ptr + tl.num_programs(0) + row, budget - above)


@triton.jit(do_not_specialize=["candidates", "budget", "scores_stride", "prompt_tokens"])
def _write_stretch(
    scores_ptr,
    bars_ptr,
    kept_ptr,
    candidates,
    budget,
    scores_stride,
    prompt_tokens,
    PROTECT_FIRST: tl.constexpr,
    STRETCH: tl.constexpr,
):
    row, stretch = tl.program_id(0), tl.program_id(1)
    out_ptr = kept_ptr + row.to(tl.int64) * (budget + prompt_tokens - candidates)
    if stretch == tl.num_programs(1) - 1:
        for first in range(0, prompt_tokens - candidates, STRETCH):
            after = first + tl.arange(0, STRETCH)
            tl.store(
                out_ptr + budget + after,
                (candidates + after).to(tl.int64),
                mask=after < prompt_tokens - candidates,
            )
        return
    row_ptr = scores_ptr + row * scores_stride
    bar = tl.load(bars_ptr + row)
    room = tl.load(bars_ptr + tl.num_programs(0) + row)
    start = stretch * STRETCH
    # Of those before: above the bar, and level with it; of the latter as many count as have room.
    above_S = tl.zeros([STRETCH], tl.int32)
    level_S = tl.zeros([STRETCH], tl.int32)
    for first in range(0, start, STRETCH):
        key = _ordered_block(row_ptr, first, candidates, PROTECT_FIRST, STRETCH)
        above_S += (key > bar).to(tl.int32)
        level_S += (key == bar).to(tl.int32)
    levels = tl.sum(level_S, 0)
    written = tl.sum(above_S, 0) + tl.minimum(levels, room)
    key = _ordered_block(row_ptr, start, candidates, PROTECT_FIRST, STRETCH)
    level = (key == bar).to(tl.int32)
    chosen = (key > bar) | ((level > 0) & (levels + tl.cumsum(level, 0) <= room))
    chosen = chosen.to(tl.int32)
    place = written + tl.cumsum(chosen, 0) - 1
    position = (start + tl.arange(0, STRETCH)).to(tl.int64)
    tl.store(out_ptr + place, position, mask=chosen > 0)
