"""Which of the two ways sums of a device's memory are computed in, and how they are waited for."""

import importlib.util
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.kv_memory.weighted_sum import slow_sums
from shared.types.kv_manifest import Segment


class SegmentSums:
    """Sums for one device.

    Args:
        device: of the bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.name = "triton" if self._on_gpu and _triton_is_here() else "torch"

    def enqueue(self, data: Tensor, segments: Sequence[Segment]) -> Tensor:
        """The sum of each segment, int64 [segments] on the host, there once the stream is past it.

        Args:
            data: uint8 [bytes of a slab]; on a GPU its current stream computes.
            segments: where they lie in it.
        """
        if self.name == "torch":
            sums = slow_sums(data, segments)
        else:
            from shared.kv_memory.kernels.sum_segments import launch_sums  # noqa: PLC0415  needs Triton

            sums = launch_sums(data, segments)
        if not self._on_gpu:
            return sums
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        return host.copy_(sums, non_blocking=True)


def _triton_is_here() -> bool:
    return importlib.util.find_spec("triton") is not None
