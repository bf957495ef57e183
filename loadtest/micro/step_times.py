"""Times of whole decode steps: with the host and without it, and by part of the device's work."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from decode_service.engine import sequence as engine
from decode_service.engine.batched.runner import BatchRunner
from loadtest.micro.kernel_timing import COPY_TB_PER_S
from loadtest.spread import paired_ratios, spread

_STEPS = 16
"""Steps of one repeat, whose mean counts."""

_SEATING = 2
"""Steps of one repeat before those."""

_ATTENTION = ("_attend_piece", "_merge_head")
_SELECTION = ("_score_tile", "_project_tile", "_select_row")
_LIBRARY = ("gemm", "nvjet", "cutlass", "splitk", "gemv", "cublas", "matmul")
_PRODUCTS = (*_LIBRARY, "_row_block", "_tile_block")


def time_steps(
    runner: BatchRunner, arms: Mapping[str, list[engine.Sequence]], *, repeats: int
) -> dict[str, Any]:
    """Milliseconds of one step of every arm, arms alternating.

    Args:
        runner: by kernels.
        arms: rows of each arm; they move on.
        repeats: turns of each arm.

    Returns:
        `step_ms`: whole steps as an engine takes them, every token fetched before the next call;
        `device_ms`: the same steps put in line on the device; `host_ms`: the host's work until
        the device has everything. Medians with spread, and the ratio of the
        first arm to each other one, paired by repeat. `first_step_s`: seconds of the very first.
    """
    taken: dict[str, dict[str, list[float]]] = {
        kind: {arm: [] for arm in arms} for kind in ("step_ms", "device_ms", "host_ms")
    }
    first_s = {}
    for arm, rows in arms.items():
        started = time.perf_counter()
        runner.step(rows)  # compiles, and captures the graph
        first_s[arm] = time.perf_counter() - started
    for _ in range(repeats):
        for arm, rows in arms.items():
            taken["step_ms"][arm].append(_whole(runner, rows))
            device, host = _queued(runner, rows)
            taken["device_ms"][arm].append(device)
            taken["host_ms"][arm].append(host)
    base = next(iter(arms))
    times = {
        kind: {
            arm: spread(values) | {"base_over_this": paired_ratios(by_arm[base], values)}
            for arm, values in by_arm.items()
        }
        for kind, by_arm in taken.items()
    }
    return times | {"first_step_s": first_s}


def mean_growth(repeats: int) -> int:
    """Tokens by which rows have grown in the middle of `time_steps`, for who does the same work."""
    return 1 + repeats * (_SEATING + _STEPS) // 2


def time_parts(runner: BatchRunner, rows: list[engine.Sequence]) -> dict[str, Any]:
    """Milliseconds of a step by part, from the device's own record of its kernels.

    Returns:
        `attention`, `selection` (without the dump), `products`, `rest`, `attention_by_layer`, and
        `kernels`: the ten that take longest, with their launches a step.
    """
    steps = 3
    runner.compute(rows)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(steps):
            runner.compute(rows)
        torch.cuda.synchronize()
    events = [e for e in record.events() or [] if e.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    kernels = [(event.name, event.time_range.elapsed_us() / 1000) for event in events]
    parts = {
        part: sum(ms for name, ms in kernels if _part_of(name) == part) / steps
        for part in ("attention", "selection", "products", "rest")
    }
    pieces = [ms for name, ms in kernels if name == _ATTENTION[0]]
    layers = len(pieces) // steps
    by_layer = [sum(pieces[layer::layers]) / steps for layer in range(layers)] if layers else []
    return {**parts, "attention_by_layer": by_layer, "kernels": _longest(kernels, steps)}


def against_bytes(step_ms: float, *, kv_bytes: int, weight_bytes: int) -> dict[str, float]:
    """Bytes that a step must read, and their rate beside the ceiling."""
    rate = (kv_bytes + weight_bytes) / step_ms / 1e9
    return {
        "kv_bytes": kv_bytes,
        "weight_bytes": weight_bytes,
        "tb_per_s": rate,
        "of_copy": rate / COPY_TB_PER_S,
    }


def _whole(runner: BatchRunner, rows: list[engine.Sequence]) -> float:
    for _ in range(_SEATING):
        runner.step(rows)  # rows take their seats; from then on the device never waits
    # A step returns when its tokens are there, with the next one under way: so does the last.
    started = time.perf_counter()
    for _ in range(_STEPS):
        runner.step(rows)
    return (time.perf_counter() - started) * 1000 / _STEPS


def _queued(runner: BatchRunner, rows: list[engine.Sequence]) -> tuple[float, float]:
    """Milliseconds of a step on the device, and of the host that enqueues it."""
    torch.cuda.synchronize()
    before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before.record()
    started = time.perf_counter()
    for _ in range(_STEPS):
        runner.compute(rows)
    host = (time.perf_counter() - started) * 1000 / _STEPS
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / _STEPS, host


def _part_of(name: str) -> str:
    if name in _ATTENTION:
        return "attention"
    if name in _SELECTION:
        return "selection"
    lower = name.lower()
    return "products" if any(mark in lower for mark in _PRODUCTS) else "rest"


def _longest(kernels: Sequence[tuple[str, float]], steps: int) -> list[dict[str, Any]]:
    total: dict[str, float] = {}
    launches: dict[str, int] = {}
    for name, ms in kernels:
        total[name] = total.get(name, 0.0) + ms / steps
        launches[name] = launches.get(name, 0) + 1
    order = sorted(total, key=lambda name: -total[name])[:10]
    return [{"name": n[:80], "ms": total[n], "launches": launches[n] / steps} for n in order]
