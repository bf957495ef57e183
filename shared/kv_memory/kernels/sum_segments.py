"""The sums of all segments of a slab in one launch; `weighted_sum.slow_sums` is its slow twin.

Shapes: S segments, P programs of a segment.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.kv_memory.weighted_sum import FIRST_FACTOR, FOLD_BITS, SECOND_FACTOR, WORD_BYTES
from shared.types.kv_manifest import Segment

_BLOCK = 2048
_BLOCKS_A_PROGRAM = 16


def launch_sums(data: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The sum of each segment, int64 [S] on the device of the bytes; nothing waits for it.

    Args:
        data: uint8 [bytes of a slab], the first one at a multiple of 64.
        segments: where they lie in it, at multiples of 64.
    """
    places = torch.tensor(
        [(s.offset // WORD_BYTES, s.length // WORD_BYTES) for s in segments], dtype=torch.int64
    )
    longest = max((s.length // WORD_BYTES for s in segments), default=0)
    programs = triton.cdiv(longest, _BLOCK * _BLOCKS_A_PROGRAM)
    parts_SP = torch.zeros((len(segments), programs), dtype=torch.int64, device=data.device)
    if programs:
        _sum_piece[(programs, len(segments))](
            data.view(torch.int32),
            places.to(data.device, non_blocking=True),
            parts_SP,
            programs,
            FIRST=FIRST_FACTOR,
            SECOND=SECOND_FACTOR,
            FOLD=FOLD_BITS,
            BLOCK=_BLOCK,
            BLOCKS=_BLOCKS_A_PROGRAM,
            num_warps=8,
        )
    return parts_SP.sum(1)


@triton.jit(do_not_specialize=["programs"])
def _sum_piece(
    words_ptr,
    places_ptr,
    parts_ptr,
    programs,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    piece = tl.program_id(0)
    segment = tl.program_id(1)
    start = tl.multiple_of(tl.load(places_ptr + 2 * segment), 16)
    count = tl.load(places_ptr + 2 * segment + 1)
    first = piece.to(tl.int64) * (BLOCK * BLOCKS)
    if first < count:
        total = tl.zeros([BLOCK], dtype=tl.int64)
        for block in range(BLOCKS):
            index = first + block * BLOCK + tl.arange(0, BLOCK)
            word = tl.load(words_ptr + start + index, mask=index < count, other=0)
            mixed = (index + 1) * FIRST
            mixed = mixed ^ ((mixed >> FOLD) & ((1 << (64 - FOLD)) - 1))
            weight = (mixed * SECOND) | 1
            total += (word.to(tl.int64) & 0xFFFFFFFF) * weight
        tl.store(parts_ptr + segment * programs + piece, tl.sum(total, 0))
