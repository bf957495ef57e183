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
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from loadtest.micro.gpu_facts import gpu_facts, require_kernels, told_with_time
from loadtest.micro.kernel_parity import relative_distance
from loadtest.micro.models import random_on_device
from loadtest.micro.pass_arms import (
    FULL,
    Arm,
    VllmPass,
    claa,
    our_arms,
    peer_arms,
    summary,
    take_turns,
)
from loadtest.micro.pass_bounds import bounds
from loadtest.micro.pass_parity import (
    PASS_CASES,
    STRICT_CASES,
    check_choice,
    check_pass,
    plain_choice,
)
from loadtest.micro.pass_parts import time_pass_parts
from loadtest.micro.pass_peer import PEER_KERNELS
from loadtest.micro.pass_plan import KNOWN_PEERS, PassPlan, add_plan_flags, plan_of
from loadtest.micro.pass_vllm import choose_chunks, prefill_settings, running_vllm, vllm_report
from loadtest.micro.tell import tell_result
from loadtest.micro.vllm_peer import VLLM, VllmPeer
from shared.errors import ConfigError, InternalError, UnavailableError
from shared.model.exact_attention import HeadShape
from shared.model.probe import TRITON, probe_attention
from shared.model.profile import load_profile
from shared.model.shapes import MODEL_SHAPES, shape_named
from shared.model.transformer import Transformer

_LONG = 16_384

_PEER_DIFFERENCE = 0.1
"""Longest difference of logits from transformers', relative: both in bfloat16, 32 layers."""


def bench_pass(
    plan: PassPlan,
    *,
    device: torch.device,
    progress: Callable[[str], None],
    vllm: VllmPeer | None = None,
) -> dict[str, Any]:
    """Compares, then times.

    Args:
        plan: what is run.
        device: a CUDA device, or the CPU, which compares only.
        progress: is told what happens, one line at a time.
        vllm: runs already; None starts one if the plan has it.

    Returns:
        JSON: parity by case; on a GPU attention (choice, times, rejected), peers (what ran, or why
        not), tokens (by length: arms, ratios, bounds), and provenance.

    Raises:
        ConfigError: the CPU without Triton's interpreter, or no such shape.
        InternalError: a result is wrong on this device.
    """
    require_kernels(device)
    unknown = [name for name in plan.peer if name not in KNOWN_PEERS]
    if unknown or plan.cases < 1 or min(plan.repeats) < 1:
        raise ConfigError(
            f"peers {', '.join(unknown) or 'are known'}, {plan.cases} cases, {plan.repeats} "
            f"repeats: the peers are {', '.join(KNOWN_PEERS)}, and cases and repeats at least 1"
        )
    on_gpu = device.type == "cuda"
    settings = prefill_settings(shape_named(plan.shape), plan.tokens)
    with running_vllm(settings, given=vllm, wanted=on_gpu and VLLM in plan.peer) as peer:
        found: dict[str, Any] = {
            "benchmark": "prefill_pass",
            "shape": plan.shape,
            "dtype": "bfloat16" if on_gpu else "float32",
            "parity": parity(device, cases=plan.cases, progress=progress),
        }
        if on_gpu:
            found |= _timed(plan, device=device, progress=progress, vllm=peer)
    return found | gpu_facts("loadtest.micro.prefill_pass", device)


@torch.inference_mode()
def parity(device: torch.device, *, cases: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Errors of the first `cases` cases; raises what `check_pass` and `check_choice` raise."""
    found = {}
    on_gpu = device.type == "cuda"
    for case in PASS_CASES[:cases] if on_gpu else PASS_CASES[-1:]:
        progress(f"parity {case.label}")
        shape = HeadShape.of(case.config, torch.bfloat16)
        choice = (
            probe_attention(device, requested=TRITON, shape=shape) if on_gpu else plain_choice()
        )
        dtype = torch.bfloat16 if on_gpu else torch.float32
        found[case.label] = check_pass(case, choice=choice, device=device, dtype=dtype)
    for case in PASS_CASES[: min(cases, STRICT_CASES) if on_gpu else 0]:
        progress(f"parity in float32 {case.label}")
        found[f"float32 {case.label}"] = check_pass(
            case, choice=plain_choice(), device=device, dtype=torch.float32
        )
    for rows, candidates, kept in ((8, 9_992, 1000), (1, 65_528, 6553), (3, 40, 20)):
        if on_gpu or candidates < 100:  # noqa: PLR2004
            check_choice(rows=rows, candidates=candidates, kept=kept, device=device)
    return found


def _timed(
    plan: PassPlan,
    *,
    device: torch.device,
    progress: Callable[[str], None],
    vllm: VllmPeer | None = None,
) -> dict[str, Any]:
    config = MODEL_SHAPES[plan.shape]
    started = _started(vllm, progress=progress)  # its start would disturb a probe
    progress(f"drawing {plan.shape}")
    model = random_on_device(config, device=device, dtype=torch.bfloat16, spread=plan.weights)
    torch.cuda.empty_cache()  # of matrices that were fused: as much again as the weights
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
        "weights": plan.weights.value,
        "pruning_layer": params.pruning_layer,
        "chunk_tokens": plan.chunk_tokens,
        "weights_bytes": torch.cuda.memory_allocated(device),
        "tokens": {},
    }
    peers, found["peers"] = _peers(plan, arms, vllm=started, progress=progress)
    arms |= peers
    for tokens, repeats in plan.schedule:
        left_out = {claa(rate) for rate in plan.keep if rate not in plan.long_keep}
        run = {k: arm for k, arm in arms.items() if tokens <= _LONG or k not in left_out}
        timed = take_turns(run, _prompt(model, tokens), repeats=repeats, device=device)
        at = {"repeats": repeats, **summary(timed)}
        at["bounds"] = bounds(tokens, at)
        if plan.parts:
            at["parts"] = _parts(run, _prompt(model, tokens))
        found["tokens"][str(tokens)] = at
        progress(json.dumps({"tokens": tokens, **_brief(at)}))
        torch.cuda.empty_cache()
    if vllm is not None and vllm.ended is not None:
        found["peers"][VLLM] |= {"failed": vllm.ended}
        found["peers"][VLLM].pop("reason", None)
    return found


def _started(vllm: VllmPeer | None, *, progress: Callable[[str], None]) -> VllmPeer | None:
    """Waits for vLLM; none where it ended instead. The rest still says something."""
    try:
        if vllm is not None:
            progress(f"vllm runs: {json.dumps(vllm.facts)}")
    except UnavailableError as error:
        progress(str(error))
        return None
    return vllm


def _peers(
    plan: PassPlan,
    ours: dict[str, Arm],
    *,
    vllm: VllmPeer | None,
    progress: Callable[[str], None],
) -> tuple[dict[str, Arm], dict[str, Any]]:
    """Arms of the peers that are here, and for each what ran or why it did not."""
    arms: dict[str, Arm] = {}
    kernels = tuple(name for name in plan.peer if name in PEER_KERNELS)
    transformers: dict[str, Any] = {"used": False, "reason": "left out by --peer"}
    if kernels and importlib.util.find_spec("transformers") is None:
        transformers["reason"] = "transformers is not installed for this Python"
    elif kernels:
        progress("drawing transformers over the same weights")
        arms |= peer_arms(ours[FULL].model, kernels)  # type: ignore[attr-defined]
        difference = _compare_peer(ours | arms, tokens=plan.tokens[0])
        transformers = {"used": True, "parity": difference}
        progress(f"difference from transformers: {difference}")
    if vllm is None:
        return arms, {"transformers": transformers, VLLM: vllm_report(None)}
    try:
        choice = choose_chunks(vllm, plan.tokens, chunk_tokens=plan.vllm_chunk)
        report = vllm_report(vllm, choice)
    except UnavailableError as error:
        progress(str(error))
        return arms, {"transformers": transformers, VLLM: vllm_report(None)}
    arm = VllmPass(peer=vllm, chunk_tokens=choice.chunk_tokens)
    brief = {key: report[key] for key in report if key.startswith("first_token")}
    progress(f"vllm alone: {json.dumps(brief)}")
    return arms | {VLLM: arm}, {"transformers": transformers, VLLM: report}


def _parts(arms: dict[str, Arm], ids: Sequence[int]) -> dict[str, Any]:
    """Kernels of full, and of the first and the last keep rate; see `time_pass_parts`."""
    rates = [name for name in arms if name.startswith("claa")]
    ours = dict.fromkeys((FULL, *rates[:1], *rates[-1:]))
    return {name: time_pass_parts(partial(arms[name], ids)) for name in ours}


def _prompt(model: Transformer, tokens: int) -> Sequence[int]:
    generator = torch.Generator().manual_seed(tokens)
    drawn = torch.randint(3, model.config.vocab_size, (tokens,), generator=generator)
    return array("q", drawn.tolist())


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


def _brief(at: dict[str, Any]) -> dict[str, Any]:
    """A line of a result."""
    return {
        "ms": {name: round(arm["seconds"]["median"] * 1e3, 2) for name, arm in at["arms"].items()},
        "bounds": {name: (round(b["value"], 4), b["met"]) for name, b in at["bounds"].items()},
        "peak_gib": {
            name: round(arm["peak_bytes"] / 2**30, 2)
            for name, arm in at["arms"].items()
            if "peak_bytes" in arm
        },
    }


def _print(result: dict[str, Any]) -> None:
    for case, found in result["parity"].items():
        print(f"parity {case}: {found}")
    for tokens, at in result.get("tokens", {}).items():
        print(f"{tokens} tokens, {at['repeats']} repeats")
        for name, arm in at["arms"].items():
            ms = {key: value * 1e3 for key, value in arm["seconds"].items()}
            line = f"  {name:22}{ms['median']:10.1f} ms ({ms['min']:.1f}-{ms['max']:.1f})"
            if "peak_bytes" in arm:
                line += f", peak {arm['peak_bytes'] / 2**30:.2f} GiB beside the weights"
            print(line)
        for name, bound in at["bounds"].items():
            verdict = "met" if bound["met"] else "MISSED"
            print(f"  {name}: {bound['value']:.3f}, at most {bound['at_most']}: {verdict}")
    print(f"{result['device']}, torch {result['torch']}, triton {result['triton']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.prefill_pass",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_plan_flags(parser)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    given = parser.parse_args(arguments)
    result = tell_result(
        parser,
        lambda: bench_pass(
            plan_of(given),
            device=torch.device(given.device),
            progress=told_with_time(),
        ),
        as_json=given.json,
        table=_print,
    )
    if "failed" in result.get("peers", {}).get(VLLM, {}):
        sys.exit(1)


if __name__ == "__main__":
    main()
