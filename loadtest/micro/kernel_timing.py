"""Times of small pieces of GPU work: many of them in one graph, so that no launch is waited for."""

from collections.abc import Callable
from typing import Any

import torch

from loadtest.spread import spread
from shared.model.device_time import seconds_on_device

COPY_TB_PER_S = 4.3
"""Bytes read and written by a device copy on an H200, the most that was measured."""

MATRIX_TFLOP_PER_S = 786.0
"""A bfloat16 matrix product of 8,192 cubed on an H200."""

_GRAPH_CALLS = 12
_REPLAYS = 20


def time_on_gpu(work: Callable[[int], object], *, replays: int = _REPLAYS) -> dict[str, float]:
    """Microseconds of one call: median, smallest and largest of `replays` graph replays.

    Args:
        work: enqueues one call; its argument counts up, so that calls can take turns in memory
            and none finds its input in the cache.
        replays: of a graph of 12 calls, each timed by events on the device.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in range(_GRAPH_CALLS):
            work(call)  # compiles, and gives the allocator its blocks
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(_GRAPH_CALLS):
            work(call)
    graph.replay()
    taken = [seconds_on_device(graph.replay) * 1e6 / _GRAPH_CALLS for _ in range(replays)]
    return spread(taken)


def against_memory(times: dict[str, float], *, moved_bytes: int) -> dict[str, Any]:
    """Times with the bytes that must be moved, and their rate beside the ceiling."""
    rate = moved_bytes / times["median"] / 1e6
    return {
        "us": times,
        "bytes": moved_bytes,
        "tb_per_s": rate,
        "of_copy": rate / COPY_TB_PER_S,
    }


def against_matrix(times: dict[str, float], *, flops: int) -> dict[str, Any]:
    """Times with the operations that must be done, and their rate beside the ceiling."""
    rate = flops / times["median"] / 1e6
    return {
        "us": times,
        "flops": flops,
        "tflop_per_s": rate,
        "of_matrix": rate / MATRIX_TFLOP_PER_S,
    }


def copy_rate() -> dict[str, Any]:
    """The device copy of this very run: 2 GiB read, 2 GiB written."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = time_on_gpu(lambda _: target.copy_(source))
    return against_memory(times, moved_bytes=2 * source.numel())
