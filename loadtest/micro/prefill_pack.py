"""Speed of short prompts in one pass against one after the other; needs torch and triton.

    python -m loadtest.micro.prefill_pack --device cuda --json
    python -m loadtest.micro.prefill_pack --device cuda --pack 16x1000,64x250 --pack-tokens 8192

Random weights of a model's shape in bfloat16; a crowd of prompts waits at once, its KV is left in
memory. Before anything is timed, prompts in company are compared with the same prompts alone on
small models; without a GPU that comparison alone runs, on one model in float32 under Triton's
interpreter (TRITON_INTERPRET=1). Arms take turns; figures are medians with their spread: seconds
until all have their first token, prompts a second, and the mean seconds of a prompt, which packing
may well raise, since all prompts of a pass end together.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loadtest.micro.gpu_facts import gpu_facts, require_kernels, told_with_time
from loadtest.micro.models import random_on_device
from loadtest.micro.pack_parity import capture_pack, check_packs
from loadtest.micro.pass_arms import FULL, claa
from loadtest.micro.pass_parity import PASS_CASES, plain_choice
from loadtest.micro.tell import tell_result
from loadtest.micro.turns import balanced_turns
from loadtest.script import list_of
from loadtest.spread import paired_ratios, spread
from prefill_service.config import PrefillConfig
from prefill_service.engine.batcher import PackLimits
from prefill_service.engine.runner import PrefillRunner
from shared.errors import ConfigError
from shared.model.exact_attention import HeadShape
from shared.model.pack_attention import with_packs
from shared.model.probe import TRITON, AttentionChoice, probe_attention
from shared.model.profile import load_profile
from shared.model.shapes import MODEL_SHAPES, shape_named
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

ALONE = 0
"""As a pack's tokens: one prompt after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdPlan:
    """What is run."""

    shape: str = "llama-3.1-8b"
    """Name of a model's shape."""
    crowds: tuple[tuple[int, int], ...] = ((16, 1000), (64, 250))
    """Prompts that wait, and the tokens of each."""
    keep: tuple[float, ...] = (1.0, 0.2)
    """Keep rates, without the profile's floor, so that short prompts are pruned, too."""
    pack_tokens: tuple[int, ...] = (PrefillConfig().device_pack_tokens,)
    """Most tokens of a pass, an arm each."""
    pack_prompts: int = PrefillConfig().pack_prompts
    """Most prompts of a pass."""
    repeats: int = 5
    """Runs of each arm that count."""
    chunk_tokens: int = PrefillConfig().device_chunk_tokens
    """Tokens of a block."""
    cases: int = 4
    """Small models that are compared first, at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdArm:
    """One way to compute a crowd."""

    runner: PrefillRunner
    model: Transformer
    params: PruningParams
    limits: PackLimits

    def __call__(self, crowd: list[list[int]]) -> list[float]:
        """Seconds after which each prompt had its first token."""
        kept, ends, first = [], [], 0
        started = time.perf_counter()
        while first < len(crowd):
            last = first + 1
            while last < len(crowd) and self.limits.fits(
                len(crowd[last]), beside=[len(ids) for ids in crowd[first:last]]
            ):
                last += 1
            kept += capture_pack(
                self.runner, self.model, [(ids, self.params) for ids in crowd[first:last]]
            )
            ends += [time.perf_counter() - started] * (last - first)
            first = last
        return ends


def bench_packs(
    plan: CrowdPlan, *, device: torch.device, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        plan: what is run.
        device: a CUDA device, or the CPU, which compares only.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: parity by case; on a GPU attention and crowds (arms and their ratios to `alone`), and
        provenance.

    Raises:
        ConfigError: the CPU without Triton's interpreter, or a plan that measures nothing.
        InternalError: a result is wrong on this device.
    """
    require_kernels(device)
    shape_named(plan.shape)
    if min(plan.cases, plan.repeats, plan.pack_prompts) < 1:
        raise ConfigError(
            f"{plan.cases} cases, {plan.repeats} repeats, packs of {plan.pack_prompts} prompts: "
            "each must be at least 1"
        )
    found: dict[str, Any] = {
        "benchmark": "prefill_pack",
        "shape": plan.shape,
        "dtype": "bfloat16" if device.type == "cuda" else "float32",
        "parity": parity(device, cases=plan.cases, progress=progress),
    }
    if device.type == "cuda":
        found |= _timed(plan, device=device, progress=progress)
    return found | gpu_facts("loadtest.micro.prefill_pack", device)


@torch.inference_mode()
def parity(device: torch.device, *, cases: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Errors of the first `cases` cases, in both attention's ways; raises what they raise."""
    found = {}
    on_gpu = device.type == "cuda"
    shortest = min(PASS_CASES, key=lambda case: case.tokens)
    for case in PASS_CASES[:cases] if on_gpu else [shortest]:
        dtype = torch.bfloat16 if on_gpu else torch.float32
        choice = _choice(HeadShape.of(case.config, dtype), device)
        progress(f"parity of packs {case.label}: {choice.backend.name}")
        found[case.label] = check_packs(case, attention=choice.backend, device=device, dtype=dtype)
    for case in PASS_CASES[: 1 if on_gpu else 0]:
        progress(f"parity of packs in float32 {case.label}")
        found[f"float32 {case.label}"] = check_packs(
            case, attention=plain_choice().backend, device=device, dtype=torch.float32
        )
    return found


def _choice(shape: HeadShape, device: torch.device) -> AttentionChoice:
    if device.type != "cuda":
        return plain_choice()
    return with_packs(probe_attention(device, requested=TRITON, shape=shape), shape, device)


def _timed(
    plan: CrowdPlan, *, device: torch.device, progress: Callable[[str], None]
) -> dict[str, Any]:
    config = MODEL_SHAPES[plan.shape]
    progress(f"drawing {plan.shape}")
    model = random_on_device(config, device=device, dtype=torch.bfloat16)
    choice = _choice(HeadShape.of(config, model.dtype), device)
    progress(f"attention: {choice.backend.name}")
    runner = PrefillRunner(model, attention=choice.backend, chunk_tokens=plan.chunk_tokens)
    params = load_profile(config=config).pruning
    crowds = {}
    for prompts, tokens in plan.crowds:
        crowd = _crowd(model, prompts, tokens)
        arms = _arms(plan, runner, model, params=params)
        crowds[f"{prompts}x{tokens}"] = at = summary(
            _take_turns(arms, crowd, repeats=plan.repeats), prompts=prompts
        )
        brief = {name: round(arm["seconds"]["median"] * 1e3, 1) for name, arm in at.items()}
        progress(json.dumps({f"{prompts}x{tokens}": brief}))
    return {
        "attention": {
            "backend": choice.backend.name,
            "rejected": {r.name: r.reason for r in choice.rejected},
        },
        "pruning_layer": params.pruning_layer,
        "chunk_tokens": plan.chunk_tokens,
        "crowds": crowds,
    }


def _arms(
    plan: CrowdPlan, runner: PrefillRunner, model: Transformer, *, params: PruningParams
) -> dict[str, CrowdArm]:
    return {
        arm_name(rate, tokens): CrowdArm(
            runner=runner,
            model=model,
            params=replace(params, keep_rate=rate, kv_rate=None, mass=None, min_keep=0),
            limits=PackLimits(tokens=tokens, prompts=plan.pack_prompts),
        )
        for rate in plan.keep
        for tokens in (ALONE, *plan.pack_tokens)
    }


def arm_name(rate: float, pack_tokens: int) -> str:
    """`full, alone`, or `claa 20 %, packs of 8192`."""
    method = FULL if rate >= 1.0 else claa(rate)
    return f"{method}, packs of {pack_tokens}" if pack_tokens else f"{method}, alone"


def _crowd(model: Transformer, prompts: int, tokens: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(3, model.config.vocab_size, (prompts, tokens), generator=generator)
    rows: list[list[int]] = ids.tolist()
    return rows


def _take_turns(
    arms: dict[str, CrowdArm], crowd: list[list[int]], *, repeats: int
) -> dict[str, list[list[float]]]:
    """Ends of each arm's runs: every arm once to warm up, then all arms once a repeat."""
    runs: dict[str, list[list[float]]] = {name: [] for name in arms}
    names = list(arms)
    turns = balanced_turns(len(names))
    for repeat in range(repeats + 1):
        for name in (names[index] for index in turns[repeat % len(turns)]):
            gc.disable()  # a collection would fall into somebody's time
            ends = arms[name](crowd)
            gc.enable()
            if repeat:
                runs[name].append(ends)
    return runs


def summary(runs: dict[str, list[list[float]]], *, prompts: int) -> dict[str, Any]:
    """JSON by arm: seconds of the crowd, prompts a second, mean seconds, ratios to `alone`."""
    found: dict[str, Any] = {}
    for name, ends in runs.items():
        seconds = [each[-1] for each in ends]
        found[name] = {
            "seconds": spread(seconds),
            "runs": seconds,
            "prompts_per_second": spread([prompts / taken for taken in seconds]),
            "mean_first_token": spread([statistics.mean(each) for each in ends]),
        }
        base = runs[f"{name.split(',')[0]}, alone"]
        found[name]["ratio_to_alone"] = paired_ratios(seconds, [each[-1] for each in base])
    return found


def _print(result: dict[str, Any]) -> None:
    for case, found in result["parity"].items():
        print(f"parity {case}: {found}")
    for crowd, arms in result.get("crowds", {}).items():
        print(f"{crowd} tokens")
        for name, arm in arms.items():
            ms = {key: value * 1e3 for key, value in arm["seconds"].items()}
            print(
                f"  {name:28}{ms['median']:9.1f} ms ({ms['min']:.1f}-{ms['max']:.1f}), "
                f"{arm['prompts_per_second']['median']:.1f} prompts/s, mean first token "
                f"{arm['mean_first_token']['median'] * 1e3:.1f} ms, "
                f"{arm['ratio_to_alone']['median']:.3f} of alone"
            )
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def _crowds(text: str) -> tuple[tuple[int, int], ...]:
    parts = [part.split("x") for part in text.split(",")]
    return tuple((int(prompts), int(tokens)) for prompts, tokens in parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    defaults = CrowdPlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.prefill_pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", default=defaults.shape, help=", ".join(MODEL_SHAPES))
    parser.add_argument(
        "--pack", type=_crowds, default=defaults.crowds, help="crowds, as 16x1000,64x250"
    )
    parser.add_argument(
        "--keep", type=list_of(float), default=defaults.keep, help="keep rates, as 1.0,0.2"
    )
    parser.add_argument(
        "--pack-tokens",
        type=list_of(int),
        default=defaults.pack_tokens,
        help="most tokens of a pass, an arm each, as 4096,8192",
    )
    parser.add_argument("--pack-prompts", type=int, default=defaults.pack_prompts)
    parser.add_argument("--repeats", type=int, default=defaults.repeats, help="of every arm")
    parser.add_argument("--chunk-tokens", type=int, default=defaults.chunk_tokens)
    parser.add_argument(
        "--cases", type=int, default=defaults.cases, help="small models that are compared first"
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    given = parser.parse_args(arguments)
    plan = CrowdPlan(
        shape=given.shape,
        crowds=given.pack,
        keep=given.keep,
        pack_tokens=given.pack_tokens,
        pack_prompts=given.pack_prompts,
        repeats=given.repeats,
        chunk_tokens=given.chunk_tokens,
        cases=given.cases,
    )
    tell_result(
        parser,
        lambda: bench_packs(
            plan,
            device=torch.device(given.device),
            progress=told_with_time(),
        ),
        as_json=given.json,
        table=_print,
    )


if __name__ == "__main__":
    main()
