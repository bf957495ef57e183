"""Time of work on a CUDA device, by its own clock."""

import time
from collections.abc import Callable

import torch

_CYCLES_PER_SECOND = 2.0e9
"""At least as many as any device makes."""

_MOST_AHEAD_S = 0.02


def seconds_on_device(work: Callable[[], object]) -> float:
    """Seconds between two events around a call, which is waited for."""
    before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def seconds_when_ahead(work: Callable[[], object]) -> float:
    """Seconds of what a call enqueues on a device that has something else to do meanwhile.

    The host is usually ahead of a device, and the time of short work by itself would be the host's,
    who enqueues it. A call that waits for the device is charged for that. The call is made twice.
    """
    torch.cuda.current_stream().synchronize()
    started = time.perf_counter()
    work()
    ahead = min(2.0 * (time.perf_counter() - started), _MOST_AHEAD_S)
    # Nothing public keeps a stream idle for a while.
    torch.cuda._sleep(int(ahead * _CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]  # noqa: SLF001
    return seconds_on_device(work)
