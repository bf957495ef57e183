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


class KernelSums:
    """Sums of the segments of one slab, some at a time; nothing waits for them.

    Args:
        data: uint8 [bytes of a slab], the first one at a multiple of 64.
        segments: where they lie in it, at multiples of 64.
    """

    def __init__(self, data: Tensor, segments: Sequence[Segment]) -> None:
        self._words = data.view(torch.int32)
        self._lengths = [s.length // WORD_BYTES for s in segments]
        places = [(s.offset // WORD_BYTES, s.length // WORD_BYTES) for s in segments]
        self._programs = _programs(max(self._lengths, default=0))
        self._places_S2 = torch.tensor(places, dtype=torch.int64).to(data.device, non_blocking=True)
        self._parts_SP = torch.zeros(
            (len(segments), self._programs), dtype=torch.int64, device=data.device
        )

    def add(self, first: int, end: int) -> None:
        """Enqueues the sums of segments `first`..`end` - 1."""
        programs = _programs(max(self._lengths[first:end], default=0))
        if programs:
            _sum_piece[(programs, end - first)](
                self._words,
                self._places_S2,
                self._parts_SP,
                first,
                self._programs,
                FIRST=FIRST_FACTOR,
                SECOND=SECOND_FACTOR,
                FOLD=FOLD_BITS,
                BLOCK=_BLOCK,
                BLOCKS=_BLOCKS_A_PROGRAM,
                num_warps=8,
            )

    def total(self) -> Tensor:
        """Enqueues the totals, int64 [S] on the device; what was not added counts 0."""
        return self._parts_SP.sum(1)


def launch_sums(data: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The sum of each segment, int64 [S] on the device of the bytes; nothing waits for it."""
    sums = KernelSums(data, segments)
    sums.add(0, len(segments))
    return sums.total()


def _programs(words: int) -> int:
    return -(-words // (_BLOCK * _BLOCKS_A_PROGRAM))


@triton.jit(do_not_specialize=["first_segment", "programs"])
def _sum_piece(
    words_ptr,
    places_ptr,
    parts_ptr,
    first_segment,
    programs,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    piece = tl.program_id(0)
    segment = first_segment + tl.program_id(1)
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
