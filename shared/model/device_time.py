"""Time of work on a CUDA device, by its own clock."""

from collections.abc import Callable

import torch


def seconds_on_device(work: Callable[[], object]) -> float:
    """Seconds between two events around a call, which is waited for."""
    before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3
