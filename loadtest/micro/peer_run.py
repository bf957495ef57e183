"""Both benches beside one vLLM engine, whose start takes a minute; needs what they need.

    python -m loadtest.micro.peer_run --tokens 10000,32768 --only "1 x 32768" --json
    python -m loadtest.micro.peer_run --tokens 65536 --repeats 4 --keep 0.1 --only "" --json

`prefill_pass` by its flags, then `decode_step` for the cases of the same model whose names hold
`--only` (empty: none), in one process and on one device. vLLM's engine has room for all of them;
where ours do not fit beside it, `decode_step` times its cases first and ends it.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from loadtest.micro.decode_step import bench_steps
from loadtest.micro.gpu_facts import told_with_time
from loadtest.micro.pass_plan import PassPlan, add_plan_flags, plan_of
from loadtest.micro.pass_vllm import prefill_settings
from loadtest.micro.prefill_pass import bench_pass
from loadtest.micro.step_peer import step_settings
from loadtest.micro.step_shapes import CASES, StepCase
from loadtest.micro.tell import tell_result
from loadtest.micro.vllm_peer import VLLM, VllmPeer, VllmSettings, why_no_vllm
from shared.errors import ConfigError
from shared.model.shapes import MODEL_SHAPES, shape_named


def run_both(
    plan: PassPlan,
    *,
    only: str,
    step_repeats: int,
    device: torch.device,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Runs both.

    Args:
        plan: of prompts' passes.
        only: part of the names of the cases of steps; empty: none.
        step_repeats: turns of each arm of a case.
        device: a CUDA device.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: `prefill` and, if there are cases, `decode`, as the benches give them.

    Raises:
        ConfigError: no GPU, no such shape, or no case of that name and shape.
        InternalError: a result is wrong on this device.
    """
    if device.type != "cuda":
        raise ConfigError("peers are timed on a GPU alone: run the benches by themselves here")
    shape_named(plan.shape)
    cases = _cases(only, shape=plan.shape)
    wanted = VLLM in plan.peer and why_no_vllm() is None
    engine = VllmPeer(one_engine(plan, cases)) if wanted else None
    try:
        found = {"prefill": bench_pass(plan, device=device, progress=progress, vllm=engine)}
        gc.collect()
        torch.cuda.empty_cache()
        if cases:
            found["decode"] = bench_steps(
                device=device,
                only=only,
                repeats=step_repeats,
                progress=progress,
                peer=VLLM if VLLM in plan.peer else "",
                vllm=engine,
            )
    finally:
        if engine is not None:
            engine.close()
    return found


def one_engine(plan: PassPlan, cases: dict[str, StepCase]) -> VllmSettings:
    """Settings that cover the prompts and the batches."""
    prompts = prefill_settings(MODEL_SHAPES[plan.shape], plan.tokens)
    if not cases:
        return prompts
    steps = step_settings(cases)
    return replace(
        prompts,
        max_tokens=max(prompts.max_tokens, steps.max_tokens),
        kv_tokens=max(prompts.kv_tokens, steps.kv_tokens),
        batches=steps.batches,
    )


def _cases(only: str, *, shape: str) -> dict[str, StepCase]:
    if not only:
        return {}
    named = {name: case for name, case in CASES.items() if only in name}
    strange = [name for name, case in named.items() if case.config != MODEL_SHAPES[shape]]
    if strange or not named:
        raise ConfigError(
            f"--only {only!r} names {', '.join(strange) or 'no case'}, not cases of {shape} alone: "
            f"there are {', '.join(CASES)}"
        )
    return named


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.peer_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_plan_flags(parser)
    parser.add_argument("--only", default="llama", help="part of the names of cases of steps")
    parser.add_argument("--step-repeats", type=int, default=12, help="turns of each arm of steps")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    given = parser.parse_args(arguments)
    result = tell_result(
        parser,
        lambda: run_both(
            plan_of(given),
            only=given.only,
            step_repeats=given.step_repeats,
            device=torch.device(given.device),
            progress=told_with_time(),
        ),
        as_json=given.json,
    )
    cases = result.get("decode", {"cases": {}})["cases"].values()
    lost = "failed" in result["prefill"]["peers"][VLLM]
    if lost or any("failed" in case or "failed" in case[VLLM] for case in cases):
        sys.exit(1)


if __name__ == "__main__":
    main()
