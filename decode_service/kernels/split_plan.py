"""How many pieces a row's attention is cut into, so that few rows still fill a device.

A piece is a run of whole key blocks. How long it is follows from the row's own length, which the
kernels read on the device, so that a short row in a batch of long ones is not cut by their measure.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE

MOST_SPLITS = 128
"""Pieces whose results one merge program still reads at once."""

_TARGET_PROGRAMS = 512
"""Programs that fill an H200 of 132 processors about four times over (measured: best at batch 1,
16 and 64)."""

_LEAST_TOKENS = 256
"""A shorter piece costs more in merging than it gains, but for few pieces (`_FEW_SPLITS`)."""

_FEW_SPLITS, _FEWEST_TOKENS = 16, 64
"""Where a device would stand half idle, as at batch 1 over a choice of 64 pages, pieces down to a
block are worth it up to so many (measured: 7.2 us instead of 10.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Sizes that an attention kernel is compiled for; none depends on a result of the device."""

    splits: int
    """Pieces of the longest row."""
    block: int = 64
    """Keys looked at together, a power of two and whole pages."""
    warps: int = 4
    """Warps of a program."""
    stages: int = 3
    """Key blocks in flight."""

    def __post_init__(self) -> None:
        if not 1 <= self.splits <= MOST_SPLITS:
            raise ConfigError(f"splits is {self.splits}: 1 to {MOST_SPLITS} can be merged")
        if self.block < PAGE_SIZE or self.block & (self.block - 1):
            raise ConfigError(
                f"block is {self.block}: a power of two of at least {PAGE_SIZE}, the page, is read"
            )


def plan_splits(*, rows: int, kv_heads: int, most_tokens: int, head_dim: int) -> SplitPlan:
    """The plan for a batch of `rows` rows of at most `most_tokens` tokens each.

    Splits are powers of two, so that few sizes are compiled.
    """
    wanted = -(-_TARGET_PROGRAMS // (rows * kv_heads))
    worth = -(-most_tokens // _LEAST_TOKENS)
    if worth > 1:
        worth = max(worth, min(_FEW_SPLITS, -(-most_tokens // _FEWEST_TOKENS)))
    splits = triton.next_power_of_2(max(1, min(wanted, worth, MOST_SPLITS)))
    # Keys and values of a stage must fit shared memory at the largest head.
    return SplitPlan(splits=splits, block=64 if head_dim <= 128 else 32)  # noqa: PLR2004


@triton.jit
def split_tokens(length, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Tokens of every piece but the last one of a row; at least one block."""
    span: tl.constexpr = SPLITS * BLOCK
    return tl.maximum((length + span - 1) // span, 1) * BLOCK
