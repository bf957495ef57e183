"""Whole generations of a batch, dense and with DELTA, by the engine's steps; torch and triton only.

    python -m loadtest.micro.generation --device cuda --generations 2 --to 18432 --json
    python -m loadtest.micro.generation --device cuda --generations 1 --json > first.json
    python -m loadtest.micro.generation --merge first.json second.json --json

Weights are random, of a model's shape; every row begins at a short prompt and ends at a long
context, takes its best token, and stops for nothing. Pages are granted beforehand and steps are
those of a worker: CUDA graphs, every token fetched before the next call; its scheduler and streams
are left out. Arms take turns, a whole generation each, and the time of a step is told by context.
First a tiny model's generation must give the PyTorch path's tokens; without a GPU that alone runs,
a few steps long, under Triton's interpreter (TRITON_INTERPRET=1).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from loadtest.micro.bounds import print_bounds
from loadtest.micro.generation_merge import merge_files, summary
from loadtest.micro.generation_parity import check_generation
from loadtest.micro.generation_rows import GenerationPlan, generation_of
from loadtest.micro.generation_times import time_generations
from loadtest.micro.gpu_facts import gpu_facts, require_kernels, told_with_time
from loadtest.micro.models import random_on_device
from loadtest.micro.step_shapes import TINY
from loadtest.micro.tell import tell_result
from shared.errors import ConfigError
from shared.model.shapes import MODEL_SHAPES
from shared.types.methods import PruningParams, SparsityParams

SHAPE, BATCH, PROMPT_TOKENS, CONTEXT = "r1-qwen-1.5b", 64, 16, 18_432
"""What the issue asks for."""

WINDOW = 128
"""Steps whose mean is one point of the course."""


def bench_generation(
    *,
    device: torch.device,
    shape: str,
    plan: GenerationPlan,
    generations: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        device: a CUDA device, or the CPU, which compares only.
        shape: name of the model's shape, told in the result.
        plan: sizes.
        generations: of each arm.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: parity by arm; on a GPU sizes, `contexts` (tokens of a row at the end of each window
        of steps), `runs` by arm (seconds, tokens_per_s, step_ms by window), summary, bounds; and
        where it was taken.

    Raises:
        ConfigError: the CPU without Triton's interpreter, or no generation.
        InternalError: the tiny model's tokens by kernels are wrong on this device.
    """
    require_kernels(device)
    if generations < 1:
        raise ConfigError(f"{generations} generations: at least one of each arm is timed")
    found: dict[str, Any] = {
        "benchmark": "generation",
        "shape": shape,
        "batch": plan.batch,
        "prompt_tokens": plan.prompt_tokens,
        "context": plan.context,
        "full_layers": list(plan.sparsity.full_layers),
        "page_budget": plan.sparsity.page_budget,
        "parity": check_tiny(device),
    }
    progress(f"tiny model: {found['parity']}")
    if device.type == "cuda":
        progress(f"drawing {shape}")
        model = random_on_device(plan.config, device=device, dtype=torch.bfloat16)
        found |= time_generations(
            model, plan, generations=generations, window=WINDOW, progress=progress
        )
        found |= summary(found)
    return found | gpu_facts("loadtest.micro.generation", device)


def check_tiny(device: torch.device) -> dict[str, Any]:
    """A tiny model in float32, past the budget and page edges; raises as `check_generation`."""
    on_gpu = device.type == "cuda"
    budget = 4
    plan = GenerationPlan(
        config=TINY.config,
        batch=TINY.batch,
        prompt_tokens=3 if on_gpu else 16 * budget - 1,
        context=320 if on_gpu else 16 * budget + 2,
        pruning=PruningParams(pruning_layer=3, deferred_layers=TINY.whole_layers),
        sparsity=SparsityParams(
            full_layers=TINY.full_layers, page_budget=budget, recency_pages=TINY.recency
        ),
    )
    model = random_on_device(plan.config, device=device, dtype=torch.float32)
    return check_generation(model, plan)


def _print(result: dict[str, Any]) -> None:
    print(f"tiny model: {result['parity']}")
    contexts = result.get("contexts", [])
    every = max(1, len(contexts) // 8)
    for arm, runs in result.get("runs", {}).items():
        told = ", ".join(f"{r['seconds']:.1f} s, {r['tokens_per_s']:,.0f} tokens/s" for r in runs)
        print(f"{arm}: {told}")
        course = list(zip(contexts, runs[0]["step_ms"], strict=True))[every - 1 :: every]
        print("  " + ", ".join(f"{ms:.2f} ms at {tokens}" for tokens, ms in course))
    print_bounds(result.get("bounds", {}))
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.generation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", default=SHAPE, help=", ".join(MODEL_SHAPES))
    parser.add_argument("--batch", type=int, default=BATCH, help="rows")
    parser.add_argument("--prompt", type=int, default=PROMPT_TOKENS, help="tokens before step 1")
    parser.add_argument("--to", type=int, default=CONTEXT, help="tokens after the last step")
    parser.add_argument("--generations", type=int, default=2, help="of each arm, by turns")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="only put results of equal runs together; of the other flags it takes --json alone",
    )
    given = parser.parse_args(arguments)
    if given.merge and (others := _of_a_measurement(parser, arguments)):
        parser.error(
            f"--merge measures nothing, so {', '.join(others)} would say nothing: leave out one or "
            "the other"
        )
    tell_result(
        parser,
        lambda: merge_files(given.merge) if given.merge else _run(given),
        as_json=given.json,
        table=_print,
    )


def _of_a_measurement(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> list[str]:
    """Flags of a measurement that were given, be it with the value that they have anyway."""
    unset = dict.fromkeys(("device", "shape", "batch", "prompt", "to", "generations"))
    given = vars(parser.parse_args(arguments, argparse.Namespace(**unset)))
    return [f"--{name}" for name in unset if given[name] is not None]


def _run(given: argparse.Namespace) -> dict[str, Any]:
    return bench_generation(
        device=torch.device(given.device),
        shape=given.shape,
        plan=generation_of(
            given.shape, batch=given.batch, prompt_tokens=given.prompt, context=given.to
        ),
        generations=given.generations,
        progress=told_with_time(),
    )


if __name__ == "__main__":
    main()
