"""Which of the two ways sums of a device's memory are computed in, and how they are waited for.

Shapes: S segments.
"""

import importlib.util
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shared.kv_memory.weighted_sum import slow_sums
from shared.types.kv_manifest import Segment


class RunningSums(Protocol):
    """Sums of the segments of one slab, some at a time; used in the stream that computes them."""

    def add(self, first: int, end: int) -> None:
        """Enqueues the sums of segments `first`..`end` - 1."""

    def total(self) -> Tensor:
        """Enqueues the totals, int64 [S] on the device of the bytes."""


class SegmentSums:
    """Sums for one device.

    Args:
        device: of the bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.name = "triton" if self._on_gpu and _triton_is_here() else "torch"

    def begin(self, data: Tensor, segments: Sequence[Segment]) -> RunningSums:
        """Sums that are enqueued as the bytes come.

        Args:
            data: uint8 [bytes of a slab]; on a GPU its current stream computes.
            segments: where they lie in it.
        """
        if self.name == "torch":
            return _SlowSums(data, segments)
        from shared.kv_memory.kernels.sum_segments import KernelSums  # noqa: PLC0415  needs Triton

        return KernelSums(data, segments)

    def enqueue(self, data: Tensor, segments: Sequence[Segment]) -> Tensor:
        """The sum of each segment, int64 [S] on the host, there once the stream is past it.

        Args:
            data: uint8 [bytes of a slab]; on a GPU its current stream computes.
            segments: where they lie in it.
        """
        running = self.begin(data, segments)
        running.add(0, len(segments))
        return self.on_host(running)

    def on_host(self, running: RunningSums) -> Tensor:
        """Enqueues the copy of all sums, int64 [S]; there once the stream is past it."""
        sums = running.total()
        if not self._on_gpu:
            return sums
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        return host.copy_(sums, non_blocking=True)


class _SlowSums:
    """By torch."""

    def __init__(self, data: Tensor, segments: Sequence[Segment]) -> None:
        self._data = data
        self._segments = segments
        self._sums_S = data.new_zeros(len(segments), dtype=torch.int64)

    def add(self, first: int, end: int) -> None:
        """See `RunningSums.add`."""
        self._sums_S[first:end] = slow_sums(self._data, self._segments[first:end])

    def total(self) -> Tensor:
        """See `RunningSums.total`."""
        return self._sums_S


def _triton_is_here() -> bool:
    return importlib.util.find_spec("triton") is not None
