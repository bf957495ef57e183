"""Speed of a prompt's pass on a CUDA device; needs torch and triton, transformers for the peer.

    python -m loadtest.micro.prefill_pass --device cuda --json
    python -m loadtest.micro.prefill_pass --device cuda --tokens 10000 --repeats 5 --peer ""

Random weights of a model's shape in bfloat16, one prompt at a time, its KV left in memory. Before
anything is timed, the CUDA path is compared with the PyTorch path in float32 on small models of all
kinds; without a GPU that comparison alone runs, in float32 under Triton's interpreter
(TRITON_INTERPRET=1), at one small size. Arms take turns; figures are medians with their spread.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadtest.micro.gpu_facts import gpu_facts, require_kernels
from loadtest.micro.kernel_parity import relative_distance
from loadtest.micro.models import random_on_device
from loadtest.micro.pass_arms import FULL, Arm, claa, our_arms, peer_arms, summary, take_turns
from loadtest.micro.pass_parity import (
    PASS_CASES,
    STRICT_CASES,
    check_choice,
    check_pass,
)
from loadtest.micro.pass_peer import PEER_KERNELS
from prefill_service.config import PrefillConfig
from shared.errors import ConfigError, InternalError
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.exact_attention import HeadShape
from shared.model.plain_attention import PlainKernel
from shared.model.probe import TRITON, AttentionChoice, probe_attention
from shared.model.profile import load_profile
from shared.model.shapes import MODEL_SHAPES
from shared.model.transformer import Transformer

TOKENS = (10_000, 32_768, 65_536)
"""Prompts that are timed."""

KEEP = (0.1, 0.2, 0.4)
"""Keep rates that are timed."""

_LONG = 16_384

_PEER = "transformers (cudnn)"
_PEER_DIFFERENCE = 0.1
"""Longest difference of logits from transformers', relative: both in bfloat16, 32 layers."""

_BOUNDS: dict[int, dict[str, tuple[str, float]]] = {
    10_000: {
        "full over transformers": (_PEER, 0.85),
        claa(0.1): (FULL, 0.54),
        claa(0.2): (FULL, 0.59),
        claa(0.4): (FULL, 0.69),
    },
    32_768: {"full over transformers": (_PEER, 0.85), claa(0.1): (FULL, 0.53)},
    65_536: {"full over transformers": (_PEER, 0.85), claa(0.1): (FULL, 0.52)},
}
_SELECT_SHARE = 0.01
"""Most of a pruned 10k prompt's time that scoring and selecting may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """What is run."""

    shape: str = "llama-3.1-8b"
    """Name of a model's shape."""
    tokens: tuple[int, ...] = TOKENS
    """Prompts."""
    keep: tuple[float, ...] = KEEP
    """Keep rates."""
    long_keep: tuple[float, ...] = KEEP
    """Those of `keep` that prompts of more than 16k tokens run with, too."""
    repeats: tuple[int, ...] = (10, 10, 4)
    """Runs of each arm that count, by prompt; the last one stands for those that follow."""
    chunk_tokens: int = PrefillConfig().device_chunk_tokens
    """Tokens of a block."""
    peer: tuple[str, ...] = tuple(PEER_KERNELS)
    """Kernels of transformers, which runs where it is installed."""
    cases: int = len(PASS_CASES)
    """Small models that are compared first, at least one."""

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """Each prompt's tokens and the repeats of its arms."""
        last = self.repeats[-1:] * len(self.tokens)
        return tuple(zip(self.tokens, (*self.repeats, *last), strict=False))


def bench_pass(
    plan: PassPlan, *, device: torch.device, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        plan: what is run.
        device: a CUDA device, or the CPU, which compares only.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: parity by case; on a GPU attention (choice, times, rejected), tokens (by length: arms,
        ratios, bounds), and provenance.

    Raises:
        ConfigError: the CPU without Triton's interpreter, or no such shape.
        InternalError: a result is wrong on this device.
    """
    require_kernels(device)
    unknown = [name for name in plan.peer if name not in PEER_KERNELS]
    if unknown or plan.cases < 1 or min(plan.repeats) < 1:
        raise ConfigError(
            f"peers {', '.join(unknown) or 'are known'}, {plan.cases} cases, {plan.repeats} "
            f"repeats: the peers are {', '.join(PEER_KERNELS)}, and cases and repeats at least 1"
        )
    if plan.shape not in MODEL_SHAPES:
        known = ", ".join(MODEL_SHAPES)
        raise ConfigError(f"no model shape {plan.shape!r}; choose one of {known}")
    found: dict[str, Any] = {
        "benchmark": "prefill_pass",
        "shape": plan.shape,
        "dtype": "bfloat16" if device.type == "cuda" else "float32",
        "parity": parity(device, cases=plan.cases, progress=progress),
    }
    if device.type == "cuda":
        found |= _timed(plan, device=device, progress=progress)
    return found | gpu_facts("loadtest.micro.prefill_pass", device)


@torch.inference_mode()
def parity(device: torch.device, *, cases: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Errors of the first `cases` cases; raises what `check_pass` and `check_choice` raise."""
    found = {}
    on_gpu = device.type == "cuda"
    for case in PASS_CASES[:cases] if on_gpu else PASS_CASES[-1:]:
        progress(f"parity {case.label}")
        shape = HeadShape.of(case.config, torch.bfloat16)
        choice = probe_attention(device, requested=TRITON, shape=shape) if on_gpu else _plain()
        dtype = torch.bfloat16 if on_gpu else torch.float32
        found[case.label] = check_pass(case, choice=choice, device=device, dtype=dtype)
    for case in PASS_CASES[: min(cases, STRICT_CASES) if on_gpu else 0]:
        progress(f"parity in float32 {case.label}")
        found[f"float32 {case.label}"] = check_pass(
            case, choice=_plain(), device=device, dtype=torch.float32
        )
    for rows, candidates, kept in ((8, 9_992, 1000), (1, 65_528, 6553), (3, 40, 20)):
        if on_gpu or candidates < 100:  # noqa: PLR2004
            check_choice(rows=rows, candidates=candidates, kept=kept, device=device)
    return found


def _plain() -> AttentionChoice:
    """The CUDA path with attention that any device runs in any type."""
    ranges = (KernelRange(up_to=None, kernel=PlainKernel()),)
    return AttentionChoice(backend=DeviceAttention(ranges), rejected=())


def _timed(
    plan: PassPlan, *, device: torch.device, progress: Callable[[str], None]
) -> dict[str, Any]:
    config = MODEL_SHAPES[plan.shape]
    progress(f"drawing {plan.shape}")
    model = random_on_device(config, device=device, dtype=torch.bfloat16)
    choice = probe_attention(device, requested=TRITON, shape=HeadShape.of(config, model.dtype))
    params = load_profile(config=config).pruning
    progress(f"attention: {choice.backend.name}")
    arms = our_arms(
        model,
        attention=choice.backend,
        params=params,
        keep=plan.keep,
        chunk_tokens=plan.chunk_tokens,
    )
    found: dict[str, Any] = {
        "attention": {
            "backend": choice.backend.name,
            "seconds": choice.seconds,
            "rejected": {r.name: r.reason for r in choice.rejected},
        },
        "pruning_layer": params.pruning_layer,
        "chunk_tokens": plan.chunk_tokens,
        "weights_bytes": torch.cuda.memory_allocated(device),
        "tokens": {},
    }
    if plan.peer and importlib.util.find_spec("transformers") is not None:
        progress("drawing transformers over the same weights")
        peers = peer_arms(model, plan.peer)
        found["peer_parity"] = _compare_peer(arms | peers, tokens=plan.tokens[0])
        arms |= peers
        progress(f"difference from transformers: {found['peer_parity']}")
    for tokens, repeats in plan.schedule:
        left_out = {claa(rate) for rate in plan.keep if rate not in plan.long_keep}
        run = {k: arm for k, arm in arms.items() if tokens <= _LONG or k not in left_out}
        timed = take_turns(run, _prompt(model, tokens), repeats=repeats, device=device)
        at = {"repeats": repeats, **summary(timed)}
        at["bounds"] = bounds(tokens, at)
        found["tokens"][str(tokens)] = at
        progress(json.dumps({"tokens": tokens, **_brief(at)}))
        torch.cuda.empty_cache()
    return found


def _prompt(model: Transformer, tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, model.config.vocab_size, (tokens,), generator=generator).tolist()


def _compare_peer(arms: dict[str, Arm], *, tokens: int) -> dict[str, Any]:
    """Our full logits against transformers', same weights, both in bfloat16.

    Raises:
        InternalError: they are further apart than two 16-bit paths are.
    """
    full = arms[FULL]
    ids = _prompt(full.model, tokens)  # type: ignore[attr-defined]
    ours_V = full(ids).output.logits_V
    theirs_V = next(arm for name, arm in arms.items() if name in PEER_KERNELS)(ids)[0]
    difference = relative_distance(ours_V, theirs_V.double())
    if not difference < _PEER_DIFFERENCE:
        raise InternalError(
            f"our logits of {tokens} tokens are {difference:.3g} off transformers', "
            f"{_PEER_DIFFERENCE} is allowed: one of the two is wrong; report this"
        )
    return {
        "logits": difference,
        "limit": _PEER_DIFFERENCE,
        "same_token": int(ours_V.argmax()) == int(theirs_V.argmax()),
    }


def bounds(tokens: int, at: dict[str, Any]) -> dict[str, Any]:
    """What was asked for at a length, what it came to, and whether that is enough."""
    found = {}
    for name, (base, most) in _BOUNDS.get(tokens, {}).items():
        arm = name if name.startswith("claa") else FULL
        ratios = at.get(f"ratio_to_{base}", {}).get(arm)
        if ratios is not None:
            found[f"{arm} over {base}"] = _bound(ratios["median"], most)
    share = at["arms"].get(claa(0.1), {}).get("select_share")
    if tokens == TOKENS[0] and share is not None:
        found["scoring and selection over claa 10 %"] = _bound(share["median"], _SELECT_SHARE)
    return found


def _bound(value: float, most: float) -> dict[str, Any]:
    return {"value": value, "at_most": most, "met": value <= most}


def _brief(at: dict[str, Any]) -> dict[str, Any]:
    """A line of a result."""
    return {
        "ms": {name: round(arm["seconds"]["median"] * 1e3, 2) for name, arm in at["arms"].items()},
        "bounds": {name: (round(b["value"], 4), b["met"]) for name, b in at["bounds"].items()},
        "peak_gib": {name: round(arm["peak_bytes"] / 2**30, 2) for name, arm in at["arms"].items()},
    }


def _print(result: dict[str, Any]) -> None:
    for case, found in result["parity"].items():
        print(f"parity {case}: {found}")
    for tokens, at in result.get("tokens", {}).items():
        print(f"{tokens} tokens, {at['repeats']} repeats")
        for name, arm in at["arms"].items():
            ms = {key: value * 1e3 for key, value in arm["seconds"].items()}
            print(
                f"  {name:22}{ms['median']:10.1f} ms ({ms['min']:.1f}-{ms['max']:.1f}), "
                f"peak {arm['peak_bytes'] / 2**30:.2f} GiB beside the weights"
            )
        for name, bound in at["bounds"].items():
            verdict = "met" if bound["met"] else "MISSED"
            print(f"  {name}: {bound['value']:.3f}, at most {bound['at_most']}: {verdict}")
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    defaults = PassPlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.prefill_pass",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", default=defaults.shape, help=", ".join(MODEL_SHAPES))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="prompts to time")
    parser.add_argument("--keep", default=",".join(map(str, KEEP)), help="keep rates")
    parser.add_argument(
        "--long-keep", default=",".join(map(str, KEEP)), help="those of them beyond 16k tokens"
    )
    parser.add_argument(
        "--repeats", default=",".join(map(str, defaults.repeats)), help="of every arm, by prompt"
    )
    parser.add_argument("--chunk-tokens", type=int, default=defaults.chunk_tokens)
    parser.add_argument(
        "--peer", default="cudnn,flash", help="kernels of transformers; empty leaves it out"
    )
    parser.add_argument(
        "--cases", type=int, default=defaults.cases, help="small models that are compared first"
    )
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    given = parser.parse_args(arguments)
    plan = PassPlan(
        shape=given.shape,
        tokens=tuple(int(n) for n in _numbers(given.tokens)),
        keep=tuple(_numbers(given.keep)),
        long_keep=tuple(_numbers(given.long_keep)),
        repeats=tuple(int(n) for n in _numbers(given.repeats)),
        chunk_tokens=given.chunk_tokens,
        peer=tuple(f"transformers ({name})" for name in given.peer.split(",") if name),
        cases=given.cases,
    )
    try:
        result = bench_pass(
            plan,
            device=torch.device(given.device),
            progress=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except ConfigError as error:
        parser.error(str(error))
    if given.json:
        print(json.dumps(result))
    else:
        _print(result)


if __name__ == "__main__":
    main()
