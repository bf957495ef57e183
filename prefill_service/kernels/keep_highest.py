"""Chooses a row's positions by score and writes them in order, in one launch: no sort, no wait.

The fast twin of `ranking.select.select_positions`. One program finds the score of the last position
that fits, four bits at a time, in an integer form of floats that sorts as they do: a histogram of
those bits, among the scores that agree in all higher ones, says which they are. It then writes what
lies above that score, and of its equals the lowest positions, in ascending order. Its length is
known before, so that nothing waits for the device. Scores of a row that fits the registers are read
once.

Shapes: R rows, C candidates, N kept tokens, L prompt tokens, P protected positions, D digits.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_BLOCK = 16_384
_MOST_WARPS = 16
_WARP_SCORES = 512
_DIGIT_BITS = 4


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
    block = min(_MOST_BLOCK, triton.next_power_of_2(candidates))
    _keep_row[(num_rows,)](
        scores_RC,
        kept_RN,
        candidates,
        budget,
        prompt_tokens,
        scores_RC.stride(0),
        PROTECT_FIRST=protect_first,
        BLOCK=block,
        IN_REGISTERS=candidates <= block,
        BITS=_DIGIT_BITS,
        num_warps=max(1, min(_MOST_WARPS, block // _WARP_SCORES)),
    )
    return kept_RN


@triton.jit
def _ordered_block(row_ptr, first, candidates, PROTECT_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Unsigned keys that sort as the scores do: -inf for NaN, 0.0 for both zeros; 0 outside."""
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
    # The least comes below the key of -inf, so no position that is not there is ever chosen.
    key = tl.where(there, key, -2147483648)
    return key.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _digit_counts(key, bar, SHIFT: tl.constexpr, BITS: tl.constexpr):
    """How many keys have each digit at `SHIFT`, of those that agree with `bar` in all above."""
    DIGITS: tl.constexpr = 1 << BITS
    digit = ((key >> SHIFT) & (DIGITS - 1)).to(tl.int32)
    # Two shifts, since one by all 32 bits is undefined.
    agrees = ((key >> SHIFT) >> BITS) == ((bar >> SHIFT) >> BITS)
    return tl.histogram(digit, DIGITS, mask=agrees)


# Lengths differ from prompt to prompt, and none of them is worth a compilation.
@triton.jit(do_not_specialize=["candidates", "budget", "prompt_tokens", "scores_stride"])
def _keep_row(
    scores_ptr,
    kept_ptr,
    candidates,
    budget,
    prompt_tokens,
    scores_stride,
    PROTECT_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    IN_REGISTERS: tl.constexpr,
    BITS: tl.constexpr,
):
    DIGITS: tl.constexpr = 1 << BITS
    row = tl.program_id(0)
    row_ptr = scores_ptr + row * scores_stride
    kept_tokens = budget + prompt_tokens - candidates
    out_ptr = kept_ptr + row.to(tl.int64) * kept_tokens
    if IN_REGISTERS:
        held = _ordered_block(row_ptr, 0, candidates, PROTECT_FIRST, BLOCK)
    # The highest bar that `budget` keys reach, digit by digit; it is one of the keys.
    bar = tl.full([], 0, tl.uint32)
    above = tl.full([], 0, tl.int32)
    digits = tl.arange(0, DIGITS)
    for shift in tl.static_range(32 - BITS, -1, -BITS):
        if IN_REGISTERS:
            count_D = _digit_counts(held, bar, shift, BITS)
        else:
            count_D = tl.zeros([DIGITS], tl.int32)
            for first in range(0, candidates, BLOCK):
                key = _ordered_block(row_ptr, first, candidates, PROTECT_FIRST, BLOCK)
                count_D += _digit_counts(key, bar, shift, BITS)
        reached_D = above + tl.sum(count_D, 0) - tl.cumsum(count_D, 0) + count_D
        digit = tl.sum((reached_D >= budget).to(tl.int32), 0) - 1
        above += tl.sum(tl.where(digits > digit, count_D, 0), 0)
        bar |= digit.to(tl.uint32) << shift
    room = budget - above
    written = tl.full([], 0, tl.int32)
    levels = tl.full([], 0, tl.int32)
    for first in range(0, candidates, BLOCK):
        if IN_REGISTERS:
            key = held
        else:
            key = _ordered_block(row_ptr, first, candidates, PROTECT_FIRST, BLOCK)
        level = (key == bar).to(tl.int32)
        chosen = (key > bar) | ((level > 0) & (levels + tl.cumsum(level, 0) <= room))
        chosen = chosen.to(tl.int32)
        place = written + tl.cumsum(chosen, 0) - 1
        position = (first + tl.arange(0, BLOCK)).to(tl.int64)
        tl.store(out_ptr + place, position, mask=chosen > 0)
        written += tl.sum(chosen, 0)
        levels += tl.sum(level, 0)
    for first in range(0, prompt_tokens - candidates, BLOCK):
        after = first + tl.arange(0, BLOCK)
        tl.store(
            out_ptr + budget + after,
            (candidates + after).to(tl.int64),
            mask=after < prompt_tokens - candidates,
        )
