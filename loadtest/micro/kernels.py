"""Speed of the Triton kernels by themselves; needs torch and triton only.

    python -m loadtest.micro.kernels --device cuda --json
    python -m loadtest.micro.kernels --device cuda --sweep --only 18432
    python -m loadtest.micro.kernels --compile 90      # no GPU: registers, spills, shared memory

Every kernel is compared with float64 before anything is timed. Without a GPU the comparison alone
runs, at small sizes under Triton's interpreter (TRITON_INTERPRET=1), and no time is given.
"""

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import triton

from loadtest.micro.kernel_compile import CompiledKernel, compiling_for
from loadtest.micro.kernel_decode import (
    DecodeCase,
    DecodeShape,
    check_decode,
    sweep_decode,
    time_decode,
)
from loadtest.micro.kernel_prefill import PrefillCase, PrefillShape, check_prefill, time_prefill
from loadtest.micro.kernel_timing import copy_rate
from shared.errors import ConfigError

_Shape = TypeVar("_Shape", DecodeShape, PrefillShape)

_QWEN = {"heads": 12, "kv_heads": 2, "head_dim": 128, "layers": 28}
_LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128}

DECODE_SHAPES = {
    "r1-qwen-1.5b 64 x 18432": DecodeShape(batch=64, tokens=18_432, **_QWEN),
    "r1-qwen-1.5b 64 x 4096": DecodeShape(batch=64, tokens=4_096, **_QWEN),
    "llama-3.1-8b 16 x 32768": DecodeShape(batch=16, tokens=32_768, layers=32, **_LLAMA),
    "llama-3.1-8b 1 x 32768": DecodeShape(batch=1, tokens=32_768, layers=32, copies=8, **_LLAMA),
}
PREFILL_SHAPES = {
    f"llama-3.1-8b {tokens} keep 10 %": PrefillShape(tokens=tokens, kept=tokens // 10, **_LLAMA)
    for tokens in (10_000, 32_768, 65_536)
}
_SMALL_DECODE = {
    "small": DecodeShape(
        batch=2,
        tokens=100,
        heads=6,
        kv_heads=2,
        head_dim=16,
        layers=4,
        copies=1,
        budget=4,
        recency=1,
    )
}
_SMALL_PREFILL = {
    "small": PrefillShape(tokens=90, heads=6, kv_heads=2, head_dim=16, kept=20),
}


def bench_kernels(
    *, device: torch.device, sweep: bool, progress: Callable[[str], None], only: str = ""
) -> dict[str, Any]:
    """Compares, then times every kernel at every shape.

    Args:
        device: a CUDA device, or the CPU, which compares only.
        sweep: look for faster plans of dense decode attention, too.
        progress: is told what happens, one line at a time.
        only: part of the names of the shapes that are run; all by default.

    Returns:
        JSON: decode and prefill, by shape (errors, and on a GPU times); copy (this run's own
        device copy); provenance.

    Raises:
        InternalError: a kernel is wrong on this device.
    """
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    decode: dict[str, Any] = {}
    for name, shape in _named(DECODE_SHAPES if on_gpu else _SMALL_DECODE, only):
        progress(f"decode {name}")
        case = DecodeCase(shape, device=device, dtype=dtype)
        decode[name] = {"plan": dataclasses.asdict(case.plan), "errors": check_decode(case)}
        if on_gpu:
            decode[name] |= time_decode(case)
        del case
        if on_gpu and sweep:
            torch.cuda.empty_cache()
            decode[name]["sweep"] = sweep_decode(shape, device=device, dtype=dtype)
    prefill: dict[str, Any] = {}
    for name, prompt in _named(PREFILL_SHAPES if on_gpu else _SMALL_PREFILL, only):
        progress(f"prefill {name}")
        prefill_case = PrefillCase(prompt, device=device, dtype=dtype)
        prefill[name] = {"errors": check_prefill(prefill_case)}
        if on_gpu:
            prefill[name] |= {"kernels": time_prefill(prefill_case)}
        del prefill_case
    result = {"benchmark": "kernels", "dtype": str(dtype).removeprefix("torch.")}
    copy = {"copy": copy_rate()} if on_gpu else {}
    return {**result, "decode": decode, "prefill": prefill, **copy, **_facts(device)}


def _named(shapes: Mapping[str, _Shape], only: str) -> list[tuple[str, _Shape]]:
    return [(name, shape) for name, shape in shapes.items() if only in name]


def compile_kernels(capability: int) -> dict[str, list[CompiledKernel]]:
    """Every kernel as the shapes call it, compiled for a compute capability, by shape.

    Raises:
        ConfigError: Triton's interpreter is on, which compiles nothing.
    """
    if triton.knobs.runtime.interpret:
        raise ConfigError("TRITON_INTERPRET is set, which compiles nothing: unset it")
    cpu, found = torch.device("cpu"), {}
    for name, shape in DECODE_SHAPES.items():
        # One row has the sizes that matter to the compiler; the plan is that of the batch.
        one = dataclasses.replace(shape, batch=1, copies=1)
        case = DecodeCase(one, device=cpu, dtype=torch.bfloat16, plan=shape.plan(shape.tokens))
        with compiling_for(capability) as compiled:
            for step in case.steps().values():
                step(0)
        found[name] = compiled
    name, prompt = next(iter(PREFILL_SHAPES.items()))
    short = dataclasses.replace(prompt, tokens=1024, kept=256)
    prefill_case = PrefillCase(short, device=cpu, dtype=torch.bfloat16)
    with compiling_for(capability) as compiled:
        prefill_case.window(0)
        prefill_case.kept_queries(0)
    return found | {name: compiled}


def _facts(device: torch.device) -> dict[str, Any]:
    """Where the figures were taken; asked of torch and git, so that nothing else is needed."""
    on_gpu = device.type == "cuda"
    return {
        "command": f"python -m loadtest.micro.kernels {' '.join(sys.argv[1:])}".strip(),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu (interpreter)",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments of our own
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _print(result: Mapping[str, Any]) -> None:
    for stage in ("decode", "prefill"):
        for shape, figures in result[stage].items():
            errors = ", ".join(f"{name} {error:.1e}" for name, error in figures["errors"].items())
            print(f"{stage} {shape}\n  errors: {errors}")
            for name, timed in figures.get("kernels", {}).items():
                rate = (
                    f"{timed['tb_per_s']:.2f} TB/s"
                    if "bytes" in timed
                    else f"{timed['tflop_per_s']:.0f} TFLOP/s"
                )
                us = timed["us"]
                print(f"  {name:18}{us['median']:9.1f} us ({us['min']:.1f}-{us['max']:.1f}) {rate}")
            for trial in figures.get("sweep", []):
                print(f"  {trial['us']['median']:.1f} us with {trial['plan']}")
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def main() -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.micro.kernels", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sweep", action="store_true", help="look for faster plans of attention")
    parser.add_argument("--only", default="", help="part of the name of the shapes to run")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument(
        "--compile", type=int, metavar="CAPABILITY", help="only compile; 90 is an H100 or H200"
    )
    given = parser.parse_args()
    if given.compile:
        found = compile_kernels(given.compile)
        plain = {name: [dataclasses.asdict(one) for one in some] for name, some in found.items()}
        print(json.dumps(plain, indent=None if given.json else 1))
        return
    result = bench_kernels(
        device=torch.device(given.device),
        sweep=given.sweep,
        only=given.only,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if given.json:
        print(json.dumps(result))
    else:
        _print(result)


if __name__ == "__main__":
    main()
