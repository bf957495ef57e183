"""Exact attention of prompts by every kernel that is right here, at the heads of the 8B shape."""

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from loadtest.micro.kernel_timing import against_matrix
from shared.model.exact_attention import EXACT_KERNELS, ExactKernel, HeadShape
from shared.model.kernel_choice import choose_kernels

HEADS = HeadShape(
    num_heads=32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16, max_tokens=65_536
)
"""Of the 8B shape."""

BLOCK = 2048
"""Queries of a block."""

_CALLS = 10


def time_prompts(
    device: torch.device, *, tokens: Sequence[int], progress: Callable[[str], None]
) -> dict[str, Any]:
    """A worker's choice at start, and every kernel that is right, at more lengths.

    Args:
        device: a CUDA device.
        tokens: prompts.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: what the choice measured and rejected; `whole` and `blocks`, times by tokens and
        kernel.
    """
    choice = choose_kernels(HEADS, device)
    progress(f"measured at start: {choice.seconds}; on blocks {choice.block_seconds}")
    progress(f"rejected: {choice.rejected}")
    found: dict[str, Any] = {
        "seconds": choice.seconds,
        "block_seconds": choice.block_seconds,
        "rejected": choice.rejected,
        "whole": {},
        "blocks": {},
    }
    arms = {
        "whole": [kernel for kernel in EXACT_KERNELS if kernel.name in choice.seconds],
        "blocks": [kernel for kernel in EXACT_KERNELS if kernel.name in choice.block_seconds],
    }
    for kind, kernels in arms.items():
        for length in tokens:
            queries = min(BLOCK, length) if kind == "blocks" else length
            times = _times_of_prompts(kernels, device, tokens=length, queries=queries)
            found[kind][str(length)] = times
            progress(f"{kind} {length}: {json.dumps(times)}")
    return found


@torch.inference_mode()
def _times_of_prompts(
    kernels: Sequence[ExactKernel], device: torch.device, *, tokens: int, queries: int
) -> dict[str, Any]:
    """Times by kernel of the last `queries` of `tokens` tokens; kernels take turns."""
    generator = torch.Generator(device).manual_seed(tokens)
    taken: dict[str, list[float]] = {kernel.name: [] for kernel in kernels}
    work = {}
    for kernel in kernels:
        rows = kernel.padded(tokens) if queries == tokens else tokens
        q, k, v = (
            torch.randn((rows, heads, HEADS.head_dim), generator=generator, device=device).to(
                HEADS.dtype
            )
            for heads in (HEADS.num_heads, HEADS.num_kv_heads, HEADS.num_kv_heads)
        )
        q = q if queries == tokens else q[-queries:]
        work[kernel.name] = partial(kernel.attend, q, k, v, want_lse=True)
        work[kernel.name]()
    for _ in range(_CALLS):
        for name, call in work.items():
            before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            after = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            before.record()
            call()
            after.record()
            after.synchronize()
            taken[name].append(before.elapsed_time(after) * 1e3)
    # Query t of the last `queries` sees tokens - queries + t + 1 keys; two products of D each.
    pairs = queries * (tokens - queries) + queries * (queries + 1) // 2
    flops = 4 * HEADS.num_heads * HEADS.head_dim * pairs
    return {
        name: against_matrix(
            {"median": statistics.median(each), "min": min(each), "max": max(each)}, flops=flops
        )
        for name, each in taken.items()
    }
