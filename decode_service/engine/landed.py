"""Bytes of a handoff as they landed, as far as a manifest's checks need them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shared.kv.checksum import crc32
from shared.kv.memory import MemoryPart
from shared.kv.slab_layout import ALIGNMENT
from shared.kv_memory.sums import SegmentSums
from shared.kv_memory.tensor_memory import TensorMemory
from shared.kv_memory.weighted_sum import slow_sums, unsigned
from shared.types.kv_manifest import Segment, SegmentCheck


class LandedBytes(Protocol):
    """One handoff's slab."""

    def sums(self, segments: Sequence[Segment], check: SegmentCheck) -> list[int]:
        """The sum of each segment, of one kind."""

    def positions(self, segment: Segment) -> Tensor:
        """Positions of a segment, int32, one-dimensional, on the host."""


class HostBytes:
    """Landed in host memory.

    Args:
        view: the handoff's bytes.
    """

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def sums(self, segments: Sequence[Segment], check: SegmentCheck) -> list[int]:
        """See `LandedBytes.sums`."""
        if check is SegmentCheck.CRC32:
            return [crc32(bytes_of(segment, self.view)) for segment in segments]
        data = torch.frombuffer(self.view, dtype=torch.uint8)
        return [unsigned(total) for total in slow_sums(data, segments).tolist()]

    def positions(self, segment: Segment) -> Tensor:
        """See `LandedBytes.positions`; shares memory with the slab."""
        return torch.frombuffer(bytes_of(segment, self.view), dtype=torch.int32)


class DeviceBytes:
    """Landed in device memory; a GPU's current stream computes.

    Args:
        part: the handoff's bytes.
        sums: computes sums there.
    """

    def __init__(self, part: MemoryPart, *, sums: SegmentSums) -> None:
        assert isinstance(part.memory, TensorMemory), "a device's memory"
        # A peer may ask for any length; segments are aligned, and items of every size need it.
        whole = part.nbytes - part.nbytes % ALIGNMENT
        self.tensor = part.memory.tensor(part.start, whole)
        self._part = part
        self._sums = sums

    def sums(self, segments: Sequence[Segment], check: SegmentCheck) -> list[int]:
        """See `LandedBytes.sums`; CRC-32 of copies on the host, one segment at a time."""
        if check is SegmentCheck.CRC32:
            pieces = (self._part.part(segment.offset, segment.length) for segment in segments)
            return [crc32(piece.on_host()) for piece in pieces]
        totals = self._sums.enqueue(self.tensor, segments)
        if self.tensor.is_cuda:
            torch.cuda.current_stream(self.tensor.device).synchronize()
        return [unsigned(total) for total in totals.tolist()]

    def positions(self, segment: Segment) -> Tensor:
        """See `LandedBytes.positions`."""
        piece = self.tensor[segment.offset : segment.offset + segment.length]
        return piece.view(torch.int32).cpu()


def bytes_of(segment: Segment, slab: memoryview) -> memoryview:
    """A segment's part of a slab on the host."""
    return slab[segment.offset : segment.offset + segment.length]
