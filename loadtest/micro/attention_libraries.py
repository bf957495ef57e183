"""The libraries' attention beside ours on a CUDA device; needs torch, triton, and what is measured.

    python -m loadtest.micro.attention_libraries --json

Prefill: each exact kernel that works here, on whole prompts and on the last 2,048 queries of them,
against float32 at the model's heads first. Decode: FlashInfer's paged attention, planned outside
and run inside a graph, beside ours, on the same pages, each result compared with float32 first.
Steps: whole steps of the decode engine with either. Times are medians: of graph replays for decode,
and of calls between events for prefill, where cuDNN and flash-attn plan on the host. Without a GPU
nothing is measured.
"""

import argparse
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.kernels.flashinfer_paged import FlashInferPaged, PagedHeads, make_workspace
from decode_service.sparsity.base import Evidence
from loadtest.micro.attention_prompts import time_prompts
from loadtest.micro.attention_steps import time_both
from loadtest.micro.gpu_facts import gpu_facts, told_with_time
from loadtest.micro.kernel_decode import DecodeCase, DecodeShape
from loadtest.micro.kernel_parity import relative_error, require_small
from loadtest.micro.kernel_timing import against_memory, time_on_gpu
from loadtest.micro.step_shapes import CASES
from loadtest.micro.tell import tell_result
from loadtest.script import list_of
from shared.errors import ConfigError
from shared.model.library_attention import why_missing

TOKENS = (1000, 10_000, 32_768, 65_536)
"""Prompts."""

DECODE_SHAPES = (
    DecodeShape(batch=64, tokens=18_432, heads=12, kv_heads=2, head_dim=128, layers=28),
    DecodeShape(batch=16, tokens=32_768, heads=32, kv_heads=8, head_dim=128, layers=32, copies=2),
)
"""A layer's batches."""

PARTS = ("prefill", "decode", "steps")
"""What can be measured."""

STEP_CASE = "r1-qwen-1.5b 64 x 18432"
"""Of `steps`: whole steps of the decode engine."""

PACKAGES = ("flash-attn-4", "flash-attn", "flashinfer-python", "nvidia-cutlass-dsl")
"""Whose versions are told."""

_CALLS = 10
_STEP_TURNS = 5
_CHECKED_ROWS = 2


def bench(
    *,
    device: torch.device,
    tokens: Sequence[int],
    progress: Callable[[str], None],
    parts: Collection[str] = PARTS,
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        device: a CUDA device.
        tokens: prompts.
        parts: what is measured, of `PARTS`.
        progress: is told what happens, one line at a time.

    Returns:
        JSON, as asked: prefill (choice, whole, blocks; by kernel and tokens), decode by shape,
        steps (see `time_both`), or why FlashInfer's are missing; versions, provenance.

    Raises:
        ConfigError: the device is no GPU, or a part is unknown.
        InternalError: a decode kernel's result, or a step's, is wrong.
    """
    if device.type != "cuda":
        raise ConfigError("the libraries compute on a GPU only; give --device cuda")
    if not set(parts) <= set(PARTS):
        raise ConfigError(f"parts {', '.join(parts)}: choose of {', '.join(PARTS)}")
    found: dict[str, Any] = {"benchmark": "attention_libraries", "versions": _versions()}
    if "prefill" in parts:
        found["prefill"] = time_prompts(device, tokens=tokens, progress=progress)
    if "decode" in parts:
        found["decode"] = _decode_shapes(device, progress=progress)
    if "steps" in parts:
        missing = _no_flashinfer()
        found["steps"] = (
            time_both(CASES[STEP_CASE], device=device, repeats=_STEP_TURNS, progress=progress)
            if missing is None
            else {"rejected": missing}
        )
    return found | gpu_facts("loadtest.micro.attention_libraries", device)


def _no_flashinfer() -> str | None:
    return why_missing("flashinfer", "flashinfer-python")


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _decode_shapes(device: torch.device, *, progress: Callable[[str], None]) -> dict[str, Any]:
    found = {}
    for shape in DECODE_SHAPES:
        label = f"{shape.batch} x {shape.tokens}, {shape.heads}/{shape.kv_heads}"
        found[label] = _decode(shape, device)
        progress(f"decode {label}: {json.dumps(found[label])}")
        torch.cuda.empty_cache()
    return found


@torch.inference_mode()
def _decode(shape: DecodeShape, device: torch.device) -> dict[str, Any]:
    """Ours, and FlashInfer where it is installed, on the same tensors."""
    case = DecodeCase(shape, device=device, dtype=torch.bfloat16)
    wanted_BHD = torch.stack([_in_float32(case, row) for row in range(_CHECKED_ROWS)])
    moved = shape.kv_bytes(shape.tokens, torch.bfloat16.itemsize)
    case.dense(0)
    found = {"triton": _checked(case.dense_out.out_BHD, wanted_BHD)}
    found["triton"] |= against_memory(time_on_gpu(case.dense), moved_bytes=moved)
    missing = _no_flashinfer()
    if missing is not None:
        return found | {"flashinfer": {"rejected": missing}}
    heads = PagedHeads(
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=torch.bfloat16,
    )
    paged = FlashInferPaged(
        heads,
        rows=shape.batch,
        width=shape.pages,
        workspace=make_workspace(heads, max_rows=shape.batch, device=device),
    )
    lengths_B = np.full(shape.batch, shape.tokens, dtype=np.int32)
    paged.plan(lengths_B)
    paged.gather(case.tables)
    out_BHD = torch.full_like(case.q_BHD, torch.nan)

    def attend(call: int) -> None:
        paged.attend(case.q_BHD, case.kv[call % len(case.kv)], out_BHD=out_BHD)

    attend(0)
    found["flashinfer"] = _checked(out_BHD, wanted_BHD)
    found["flashinfer"] |= against_memory(time_on_gpu(attend), moved_bytes=moved)
    found["flashinfer"]["gather_us"] = time_on_gpu(lambda _: paged.gather(case.tables))
    found["flashinfer"]["plan_us"] = _host_us(lambda: paged.plan(lengths_B))
    return found


def _in_float32(case: DecodeCase, row: int) -> torch.Tensor:
    """Output [H, D] of a row, from its own keys and values."""
    keys, values = (
        memory[case.tables.pages_BM[row].long()].flatten(0, 1)[: case.shape.tokens].float()
        for memory in case.kv[0]
    )
    attention = TorchDecodeAttention()
    return attention.attend(case.q_BHD[row].float(), keys, values, evidence=Evidence.NONE).out_HD


def _checked(out_BHD: torch.Tensor, wanted_BHD: torch.Tensor) -> dict[str, Any]:
    error = relative_error(out_BHD[: wanted_BHD.shape[0]], wanted_BHD)
    require_small("attention over every token", error)
    return {"error": error}


def _host_us(work: Callable[[], None]) -> float:
    """Microseconds of host time of a call, median."""
    taken = []
    for _ in range(_CALLS):
        torch.cuda.synchronize()
        before = time.perf_counter()
        work()
        taken.append((time.perf_counter() - before) * 1e6)
    return statistics.median(taken)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.attention_libraries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tokens", type=list_of(int), default=TOKENS, help="prompts to time, as 1000,10000"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured")
    parser.add_argument("--json", action="store_true", help="the result on one line")
    given = parser.parse_args(arguments)
    tell_result(
        parser,
        lambda: bench(
            device=torch.device(given.device),
            tokens=given.tokens,
            parts=given.parts.split(","),
            progress=told_with_time(),
        ),
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
