"""Sums of the bytes of segments, computed where the bytes lie: what a CRC is for bytes on the host.

The sum of a segment is sum_i w_i * m_i mod 2^64 over its 32-bit words w_i, read as unsigned little
endian numbers, with an odd weight m_i that is mixed from the index i. One changed word always
changes it, since an odd factor has an inverse mod 2^64; words that moved meet other weights. It
guards against bytes that were lost, moved or damaged, not against somebody who means harm.

Here is the slow twin, for a CPU too; `kernels.sum_segments` computes the same in one launch.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shared.types.kv_manifest import Segment

WORD_BYTES = 4
"""A segment is a whole number of words: a slot of keys and values has at least two items."""

FIRST_FACTOR = -0x61C8864680B583EB
"""2^64 over the golden ratio, odd, as a signed number."""

SECOND_FACTOR = -0x4B47D0C5A1A59E35
"""An odd number without a pattern, as a signed number."""

FOLD_BITS = 29
"""The upper bits of the first product come down by so many."""

_WORD_MASK = 0xFFFFFFFF
_FOLD_MASK = (1 << (64 - FOLD_BITS)) - 1
_WORDS_AT_ONCE = 1 << 22


def slow_sums(data: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The sum of each segment, int64 [len(segments)] on the device of the bytes.

    Args:
        data: uint8 [bytes of a slab].
        segments: where they lie in it.
    """
    sums = [
        sum((_weighted(words, first) for words, first in _pieces(data, segment)), _zero(data))
        for segment in segments
    ]
    return torch.stack(sums) if sums else data.new_zeros(0, dtype=torch.int64)


def unsigned(total: int) -> int:
    """A sum as protos carry it, 0 to 2^64 - 1."""
    return total & ((1 << 64) - 1)


def _pieces(data: Tensor, segment: Segment) -> Iterator[tuple[Tensor, int]]:
    words = data[segment.offset : segment.offset + segment.length].view(torch.int32)
    for first in range(0, words.shape[0], _WORDS_AT_ONCE):
        yield words[first : first + _WORDS_AT_ONCE], first


def _weighted(words: Tensor, first: int) -> Tensor:
    index = torch.arange(first, first + words.shape[0], dtype=torch.int64, device=words.device)
    mixed = (index + 1) * FIRST_FACTOR
    mixed = mixed ^ ((mixed >> FOLD_BITS) & _FOLD_MASK)
    weights = (mixed * SECOND_FACTOR) | 1
    return ((words.to(torch.int64) & _WORD_MASK) * weights).sum()


def _zero(data: Tensor) -> Tensor:
    return data.new_zeros((), dtype=torch.int64)
