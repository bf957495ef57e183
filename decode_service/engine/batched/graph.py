"""A step of one shape as one CUDA graph: captured once, replayed at every step.

The one part that only a GPU can run. What a step allocates while it is captured lies in memory that
all graphs share: they never run side by side, and only a step's output outlives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from decode_service.engine.batched.device_step import DeviceStep, StepOutput

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


def make_pool() -> _POOL_HANDLE:
    """Memory that graphs share."""
    return torch.cuda.graph_pool_handle()


class GraphedStep:
    """A captured step.

    Args:
        step: the step; its inputs are seats that stay where they are.
        pool: memory of all graphs.
    """

    def __init__(self, step: DeviceStep, pool: _POOL_HANDLE) -> None:
        self._step = step
        step.plan()
        # Once without capture: compiles kernels, and libraries make their workspaces.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step.enqueue()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of a worker talk to the device while this one captures.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._output = step.enqueue()

    def run(self) -> StepOutput:
        """Plans and enqueues the step; its output is overwritten by the next one."""
        self._step.plan()
        self._graph.replay()
        return self._output
