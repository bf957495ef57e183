"""Speed of the Triton kernels by themselves; needs torch and triton only.

    python -m loadtest.micro.kernels --device cuda --json
    python -m loadtest.micro.kernels --device cuda --sweep --only 18432
    python -m loadtest.micro.kernels --compile 90      # no GPU: registers, spills, shared memory

Every kernel is compared with float64 before anything is timed. Without a GPU the comparison alone
runs, at small sizes under Triton's interpreter (TRITON_INTERPRET=1), and no time is given.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import triton

from loadtest.micro.gpu_facts import gpu_facts, require_kernels, told_with_time
from loadtest.micro.kernel_compile import CompiledKernel, compiling_for
from loadtest.micro.kernel_decode import (
    DecodeCase,
    DecodeShape,
    check_decode,
    sweep_decode,
    time_decode,
)
from loadtest.micro.kernel_prefill import PrefillCase, PrefillShape, check_prefill, time_prefill
from loadtest.micro.kernel_products import (
    ODD_PRODUCT_SHAPES,
    PRODUCT_SHAPES,
    ProductShape,
    launch_products,
    time_products,
)
from loadtest.micro.kernel_shapes import (
    DECODE_SHAPES,
    ODD_DECODE_SHAPES,
    ODD_PREFILL_SHAPES,
    PREFILL_SHAPES,
)
from loadtest.micro.kernel_timing import copy_rate
from loadtest.micro.tell import tell_result
from shared.errors import ConfigError

_Shape = TypeVar("_Shape", DecodeShape, PrefillShape, ProductShape)


def bench_kernels(
    *, device: torch.device, sweep: bool, progress: Callable[[str], None], only: str = ""
) -> dict[str, Any]:
    """Compares every kernel at all sizes, and times it at those of models.

    Args:
        device: a CUDA device, or the CPU, which compares only, at one size.
        sweep: look for faster plans of dense decode attention, too.
        progress: is told what happens, one line at a time.
        only: part of the names of the sizes that are run; all by default.

    Returns:
        JSON: decode, prefill and products, by size (errors, and on a GPU times); copy (this run's
        own device copy); provenance.

    Raises:
        ConfigError: the CPU without Triton's interpreter, or no size of that name.
        InternalError: a kernel is wrong on this device.
    """
    on_gpu = device.type == "cuda"
    require_kernels(device)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    decode: dict[str, Any] = {}
    for name, shape in _chosen(ODD_DECODE_SHAPES, DECODE_SHAPES, only, on_gpu=on_gpu):
        progress(f"decode {name}")
        case = DecodeCase(shape, device=device, dtype=dtype)
        decode[name] = {"plan": dataclasses.asdict(case.plan), "errors": check_decode(case)}
        if name in DECODE_SHAPES:
            decode[name] |= time_decode(case)
        del case
        if name in DECODE_SHAPES and sweep:
            torch.cuda.empty_cache()
            decode[name]["sweep"] = sweep_decode(shape, device=device, dtype=dtype)
    prefill: dict[str, Any] = {}
    for name, prompt in _chosen(ODD_PREFILL_SHAPES, PREFILL_SHAPES, only, on_gpu=on_gpu):
        progress(f"prefill {name}")
        prefill_case = PrefillCase(prompt, device=device, dtype=dtype)
        prefill[name] = {"errors": check_prefill(prefill_case)}
        if name in PREFILL_SHAPES:
            prefill[name]["kernels"] = time_prefill(prefill_case)
        del prefill_case
    products: dict[str, Any] = {}
    for name, steps in _chosen(ODD_PRODUCT_SHAPES, PRODUCT_SHAPES, only, on_gpu=on_gpu):
        progress(name)
        if name in PRODUCT_SHAPES or not on_gpu:
            products[name] = time_products(steps, device=device, dtype=dtype)
    if not decode and not prefill and not products:
        raise ConfigError(f"no size has {only!r} in its name; run without --only to see them all")
    result = {"benchmark": "kernels", "dtype": str(dtype).removeprefix("torch.")}
    copy = {"copy": copy_rate()} if on_gpu else {}
    return {
        **result,
        "decode": decode,
        "prefill": prefill,
        "products": products,
        **copy,
        **gpu_facts("loadtest.micro.kernels", device),
    }


def _chosen(
    odd: Mapping[str, _Shape], models: Mapping[str, _Shape], only: str, *, on_gpu: bool
) -> list[tuple[str, _Shape]]:
    """The odd sizes first, so that a wrong kernel shows before a long measurement."""
    every: list[tuple[str, _Shape]] = list(odd.items())
    every = every + list(models.items()) if on_gpu else every[:1]
    return [(name, shape) for name, shape in every if only in name]


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
    found[name] = compiled
    with compiling_for(capability) as compiled:
        launch_products()
    return found | {"products": compiled}


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
    for shape, figures in result["products"].items():
        for rows, kinds in figures["rows"].items():
            for kind, each in kinds.items():
                times = ", ".join(
                    f"{way} {us:.1f} us {each['tb_per_s'][way]:.2f} TB/s"
                    for way, us in each.get("us", {}).items()
                )
                print(f"{shape}, {rows} rows, {kind}: {each['serves']} serves; {times}")
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.micro.kernels", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sweep", action="store_true", help="look for faster plans of attention")
    parser.add_argument("--only", default="", help="part of the name of the shapes to run")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument(
        "--compile", type=int, metavar="CAPABILITY", help="only compile; 90 is an H100 or H200"
    )
    given = parser.parse_args(arguments)
    if given.compile:
        tell_result(parser, lambda: _compiled(given.compile), as_json=given.json)
        return
    tell_result(
        parser,
        lambda: bench_kernels(
            device=torch.device(given.device),
            sweep=given.sweep,
            only=given.only,
            progress=told_with_time(),
        ),
        as_json=given.json,
        table=_print,
    )


def _compiled(capability: int) -> dict[str, Any]:
    found = compile_kernels(capability)
    return {name: [dataclasses.asdict(one) for one in some] for name, some in found.items()}


if __name__ == "__main__":
    main()
