"""Where a prompt's pass spends its time, from the device's own record of its kernels."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_KERNELS = 24
"""Kernels that are listed, longest first."""

_GAPS = 8
"""Pauses that are listed, longest first."""

_NAME = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """One launch on the device's clock, in ms."""

    name: str
    start: float
    end: float


def time_pass_parts(run: Callable[[], object]) -> dict[str, Any]:
    """Records one call of `run`, which was warmed up.

    Returns:
        See `parts_of`; and `wall_ms`, of the recorded call, which is a little slower than others.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        wall_ms = (time.perf_counter() - started) * 1e3
    events = [e for e in record.events() or [] if e.device_type.name == "CUDA"]
    runs = [
        KernelRun(name=e.name, start=e.time_range.start / 1e3, end=e.time_range.end / 1e3)
        for e in events
    ]
    return {"wall_ms": wall_ms, **parts_of(runs)}


def parts_of(runs: Sequence[KernelRun]) -> dict[str, Any]:
    """Launches of one pass summed up.

    Returns:
        JSON: `span_ms` from the first launch to the end of the last; `busy_ms`, when the device
        computed; `idle_ms`, the rest; `gaps`, the longest pauses with the moment and the kernel
        that came after; `kernels`, the longest in all with their launches and when they first
        began and last ended, counted from the first launch.
    """
    if not runs:
        return {"span_ms": 0.0, "busy_ms": 0.0, "idle_ms": 0.0, "gaps": [], "kernels": []}
    ordered = sorted(runs, key=lambda run: run.start)
    origin = reached = ordered[0].start
    gaps: list[dict[str, Any]] = []
    busy = 0.0
    for run in ordered:
        if run.start > reached:
            gap = {"ms": run.start - reached, "at_ms": reached - origin, "before": run.name[:_NAME]}
            gaps.append(gap)
        busy += max(0.0, run.end - max(run.start, reached))
        reached = max(reached, run.end)
    span = reached - origin
    gaps.sort(key=lambda gap: -gap["ms"])
    return {
        "span_ms": span,
        "busy_ms": busy,
        "idle_ms": span - busy,
        "gaps": gaps[:_GAPS],
        "kernels": _by_kernel(ordered, origin=origin),
    }


def _by_kernel(runs: Sequence[KernelRun], *, origin: float) -> list[dict[str, Any]]:
    held: dict[str, list[KernelRun]] = {}
    for run in runs:
        held.setdefault(run.name, []).append(run)
    found: list[dict[str, Any]] = [
        {
            "name": name[:_NAME],
            "ms": sum(run.end - run.start for run in each),
            "launches": len(each),
            "first_at_ms": each[0].start - origin,
            "last_end_ms": max(run.end for run in each) - origin,
        }
        for name, each in held.items()
    ]
    found.sort(key=lambda kernel: -kernel["ms"])
    return found[:_KERNELS]
