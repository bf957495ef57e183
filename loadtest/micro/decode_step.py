"""Whole decode steps of a batch by the Triton kernels; needs torch and triton only.

    python -m loadtest.micro.decode_step --device cuda --json
    python -m loadtest.micro.decode_step --device cuda --only 18432 --repeats 12
    python -m loadtest.micro.decode_step --device cuda --shape llama-3.2-3b,r1-qwen-7b --batch 16

Weights and KV are random, of a model's shape. Logits are compared with the PyTorch path before
anything is timed: a tiny model in float32 and bfloat16 over page edges, then the timed batch. The
arms are steps of one engine and one way of capture, so their ratios compare methods: dense,
DELTA, and where the case prunes, dense over the pruned prompt and both methods. Where vLLM can be
imported, its time between tokens of the same batch is taken in the same run (`--peer ""` leaves it
out). Without a GPU the comparison of the tiny model alone runs, under Triton's interpreter
(TRITON_INTERPRET=1).
"""

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch

from loadtest.micro.bounds import print_bounds
from loadtest.micro.gpu_facts import gpu_facts, require_kernels, told_with_time
from loadtest.micro.models import random_on_device
from loadtest.micro.step_cases import add_case_flags, named_cases
from loadtest.micro.step_parity import CHOICES, Float32Twin, StepCheck, make_runners
from loadtest.micro.step_peer import StepPeer
from loadtest.micro.step_rows import CaseRows
from loadtest.micro.step_shapes import CASES, TINY, StepCase
from loadtest.micro.step_times import against_bytes, mean_growth, time_parts, time_steps
from loadtest.micro.tell import tell_result
from loadtest.micro.vllm_peer import VLLM, VllmPeer
from shared.errors import ConfigError, InternalError
from shared.model.transformer import Transformer

_EDGE_STEPS = 18


def bench_steps(  # noqa: PLR0913  what is timed, where, how often, and beside whom
    *,
    device: torch.device,
    only: str,
    repeats: int,
    progress: Callable[[str], None],
    peer: str = VLLM,
    vllm: VllmPeer | None = None,
    cases: Mapping[str, StepCase] = CASES,
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        device: a CUDA device, or the CPU, which compares the tiny model only.
        only: part of the names of the cases to time.
        repeats: turns of each arm.
        progress: is told what happens, one line at a time.
        peer: vllm, where it can be imported; empty leaves it out.
        vllm: an engine that runs already and is ended here.
        cases: what there is to time, by name.

    Returns:
        JSON: `tiny` (errors by type and arm), `cases` (errors, times, bytes and parts by arm, vllm,
        bounds; or `failed`: what was wrong), and where it was taken.

    Raises:
        ConfigError: the CPU without Triton's interpreter, no case of that name, or no repeat.
        InternalError: the tiny model's steps by kernels are wrong on this device.
    """
    on_gpu = device.type == "cuda"
    require_kernels(device)
    chosen = {name: case for name, case in cases.items() if only in name}
    if not chosen:
        raise ConfigError(f"no case has {only!r} in its name; run without --only to see them all")
    if repeats < 1:
        raise ConfigError(f"{repeats} repeats: at least one turn of each arm is timed")
    if peer not in {"", VLLM}:
        raise ConfigError(f"no peer {peer!r}: vllm, or empty for none")
    timed = chosen if on_gpu else {}
    beside = StepPeer(
        timed,
        device=device,
        given=vllm,
        wanted=peer == VLLM,
        progress=progress,
        growth=mean_growth(repeats),
    )
    with closing(beside):
        tiny = _check_types(device, progress=progress)
        found: dict[str, Any] = {}
        for name, case in timed.items():
            ours = partial(time_case, case, device=device, repeats=repeats, progress=progress)
            found[name] = case_beside(beside, name, ours, progress=progress)
    facts = gpu_facts("loadtest.micro.decode_step", device)
    return {"benchmark": "decode_step", "tiny": tiny, "cases": found, **facts}


def case_beside(
    peer: StepPeer,
    name: str,
    ours: Callable[[], dict[str, Any]],
    *,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """`StepPeer.beside`; where ours fail, that and what is known of the peer."""
    try:
        return peer.beside(name, ours)
    except (InternalError, torch.OutOfMemoryError) as error:
        # The other cases still say something; the exit code tells of this one.
        progress(f"{name}: {error}")
        return {"failed": str(error), **peer.seen(name)}


def _check_types(device: torch.device, *, progress: Callable[[str], None]) -> dict[str, Any]:
    """Errors of the tiny model by type; see `check_tiny`."""
    on_gpu = device.type == "cuda"
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,):
        name = str(dtype).removeprefix("torch.")
        found[name] = check_tiny(device=device, dtype=dtype, steps=_EDGE_STEPS if on_gpu else 2)
        progress(f"tiny model in {name}: errors {found[name]}")
    return found


def check_tiny(
    *, device: torch.device, dtype: torch.dtype, steps: int
) -> dict[str, dict[str, float]]:
    """Errors of a tiny model over `steps` steps, by arm; see `StepCheck.run`."""
    model = random_on_device(TINY.config, device=device, dtype=dtype)
    held = CaseRows(model, TINY)
    exact = None if dtype is torch.float32 else Float32Twin(model, held, rows=TINY.batch)
    check = StepCheck(model, held, TINY, checked_rows=TINY.batch, exact=exact)
    return check.run(steps=steps)


def time_case(
    case: StepCase, *, device: torch.device, repeats: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Everything about one batch."""
    gc.collect()
    torch.cuda.empty_cache()  # of the case before
    model = random_on_device(case.config, device=device, dtype=torch.bfloat16)
    torch.cuda.empty_cache()  # of matrices that were fused
    held = CaseRows(model, case)
    errors = _check_case(model, held, case)
    torch.cuda.empty_cache()
    progress(f"batch {case.batch} x {case.context}: errors {errors}")
    _, runner = make_runners(model, held.cache, case)
    arms = {arm: held.rows(arm) for arm in held.arms()}
    times = time_steps(runner, arms, repeats=repeats)
    reads = {}
    for arm, each in arms.items():
        attended = int(runner.compute(each).attended.sum())
        reads[arm] = {
            "attended": attended / case.batch,
            **against_bytes(
                times["device_ms"][arm]["median"],
                kv_bytes=attended * model.geometry().token_bytes,
                weight_bytes=_weight_bytes(model),
            ),
            "parts_ms": time_parts(runner, each),
        }
    progress(f"  {_in_words(times['step_ms'])}")
    return {"errors": errors, **times, "arms": reads, **runner.facts}


def _check_case(model: Transformer, held: CaseRows, case: StepCase) -> dict[str, dict[str, float]]:
    """One row of the timed batch; the float32 copies are gone afterwards."""
    exact = Float32Twin(model, held, rows=1)
    return StepCheck(model, held, case, checked_rows=1, exact=exact).run(steps=CHOICES)


def _weight_bytes(model: Transformer) -> int:
    """Bytes of the matrices that a step reads whole."""
    layers = [
        matrix
        for layer in model.layers
        for matrix in (
            layer.weights.qkv,
            layer.weights.out,
            layer.weights.gate_up,
            layer.weights.down,
        )
    ]
    return sum(matrix.numel() * matrix.element_size() for matrix in (*layers, model.head_VE))


def _in_words(step_ms: dict[str, Any]) -> str:
    return ", ".join(
        f"{arm} {times['median']:.3f} ms ({times['base_over_this']['median']:.2f}x)"
        for arm, times in step_ms.items()
    )


def _print(result: dict[str, Any]) -> None:
    for name, case in result["cases"].items():
        if "failed" in case:
            print(f"{name}\n  failed: {case['failed']}")
            continue
        print(f"{name}\n  step: {_in_words(case['step_ms'])}")
        print(f"  device: {_in_words(case['device_ms'])}")
        if case[VLLM]["used"]:
            print(f"  vllm: {case[VLLM]['step_ms']['median']:.3f} ms ({case[VLLM]['order']})")
        print_bounds(case["bounds"], indent="  ")
        for arm, reads in case["arms"].items():
            parts = reads["parts_ms"]
            text = ", ".join(
                f"{part} {parts[part]:.3f}"
                for part in ("attention", "selection", "products", "rest")
            )
            print(f"  {arm:8} {reads['tb_per_s']:.2f} TB/s; ms: {text}")
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.decode_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", help="part of the names of the cases to time")
    add_case_flags(parser)
    parser.add_argument("--repeats", type=int, default=12, help="turns of each arm")
    parser.add_argument("--peer", default=VLLM, help="vllm; empty leaves it out")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    given = parser.parse_args(arguments)
    result = tell_result(
        parser,
        lambda: bench_steps(
            device=torch.device(given.device),
            only=given.only,
            repeats=given.repeats,
            progress=told_with_time(),
            peer=given.peer,
            cases=named_cases(given.shape, batch=given.batch, contexts=given.context),
        ),
        as_json=given.json,
        table=_print,
    )
    cases = result["cases"].values()
    if any("failed" in case or "failed" in case[VLLM] for case in cases):
        sys.exit(1)


if __name__ == "__main__":
    main()
