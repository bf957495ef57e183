"""What the bench of a prompt's pass runs and how it is timed: arms take turns, one prompt each.

Shapes: T tokens, V vocabulary.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loadtest.micro.pass_peer import PEER_KERNELS, TransformersPass
from loadtest.micro.turns import balanced_turns
from loadtest.micro.vllm_peer import VLLM, VllmPeer
from loadtest.spread import paired_ratios, spread
from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from shared.errors import UnavailableError
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

FULL = "full"
"""Our arm that prunes nothing."""


def claa(rate: float) -> str:
    """Name of the arm that keeps a share."""
    return f"claa {100 * rate:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class OurPass:
    """Our prefill of a prompt at one keep rate; its KV stays in memory."""

    model: Transformer
    attention: PrefillAttention
    params: PruningParams
    chunk_tokens: int

    def __call__(self, ids: Sequence[int]) -> CapturedPrefill:
        """One prompt."""
        return capture_prefill(
            self.model,
            attention=self.attention,
            token_ids=ids,
            params=self.params,
            chunk_tokens=self.chunk_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPass:
    """transformers' prefill of a prompt; its KV stays in memory."""

    peer: TransformersPass

    def __call__(self, ids: Sequence[int]) -> tuple[Tensor, Any]:
        """One prompt."""
        return self.peer.run(torch.from_numpy(np.asarray(ids)).to(self.peer.device))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnClock:
    """A run that was timed where it happened."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPass:
    """vLLM's time to first token of another prompt of the same length, by its process's clock."""

    peer: VllmPeer
    chunk_tokens: Mapping[int, int]
    """Most tokens of a step by prompt tokens; 0: all of them."""

    def __call__(self, ids: Sequence[int]) -> OwnClock:
        """One prompt."""
        found = self.peer.first_token(len(ids), chunk_tokens=self.chunk_tokens[len(ids)])
        return OwnClock(seconds=found["seconds"])


Arm = Callable[[Sequence[int]], Any]
"""Takes a prompt; the bench gives its ids as a worker holds them, an array on the host."""


def our_arms(
    model: Transformer,
    *,
    attention: PrefillAttention,
    params: PruningParams,
    keep: tuple[float, ...],
    chunk_tokens: int,
) -> dict[str, Arm]:
    """Full and every keep rate."""
    rates = {FULL: 1.0} | {claa(rate): rate for rate in keep}
    return {
        name: OurPass(
            model=model,
            attention=attention,
            params=replace(params, keep_rate=rate, kv_rate=None, mass=None),
            chunk_tokens=chunk_tokens,
        )
        for name, rate in rates.items()
    }


def peer_arms(model: Transformer, names: tuple[str, ...]) -> dict[str, Arm]:
    """Transformers by some of its kernels."""
    peer = TransformersPass(model)
    return {name: PeerPass(peer=peer.by(PEER_KERNELS[name])) for name in names}


@dataclass(slots=True)
class Timed:
    """What an arm's runs took."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    """Most memory beside what was allocated before the run."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What our own arms tell of their last run."""
    select_seconds: list[float] = field(default_factory=list)
    """Scoring and selecting of each run, where something was selected."""


def take_turns(
    arms: dict[str, Arm], ids: Sequence[int], *, repeats: int, device: torch.device
) -> dict[str, Timed]:
    """Every arm once to warm up, then all arms once a repeat; not those whose process ended."""
    names = list(arms)
    timed = {name: Timed() for name in names}
    turns = balanced_turns(len(names))
    for repeat in range(repeats + 1):
        for name in (names[index] for index in turns[repeat % len(turns)]):
            if name not in timed:
                continue
            try:
                _run(arms[name], ids, timed[name], counted=repeat > 0, device=device)
            except UnavailableError:
                # The peer tells why; what others took still says something.
                del timed[name]
    return timed


def _run(
    arm: Arm, ids: Sequence[int], timed: Timed, *, counted: bool, device: torch.device
) -> None:
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    gc.disable()  # a collection would fall into somebody's time
    started = time.perf_counter()
    result = arm(ids)
    if on_gpu:
        torch.cuda.synchronize(device)
    taken = time.perf_counter() - started
    gc.enable()
    if isinstance(result, OwnClock):
        taken = result.seconds
    if not counted:
        return
    timed.seconds.append(taken)
    if on_gpu:
        peak = torch.cuda.max_memory_allocated(device) - before
        timed.peak_bytes = max(timed.peak_bytes, peak)
    if isinstance(result, CapturedPrefill):
        timed.facts = _facts(result)
        if result.plan.summary.pruned:
            timed.select_seconds.append(result.output.select_seconds)


def _facts(captured: CapturedPrefill) -> dict[str, Any]:
    slab = captured.plan.slab
    return {
        "kept_tokens": captured.plan.summary.kept_tokens,
        "kv_bytes": sum(segment.length for segment in slab.segments),
    }


def summary(timed: dict[str, Timed]) -> dict[str, Any]:
    """JSON: arms (seconds, runs, peak bytes, select share), ratios to full and to the peer."""
    arms = {}
    for name, each in timed.items():
        arms[name] = {
            "seconds": spread(each.seconds),
            "runs": each.seconds,
            **each.facts,
        }
        if name != VLLM:  # whose memory is another process's
            arms[name]["peak_bytes"] = each.peak_bytes
        if each.select_seconds:
            arms[name]["select_seconds"] = spread(each.select_seconds)
            arms[name]["select_share"] = paired_ratios(each.select_seconds, each.seconds)
    found: dict[str, Any] = {"arms": arms}
    for base in (FULL, *PEER_KERNELS, VLLM):
        if base in timed:
            found[f"ratio_to_{base}"] = {
                name: paired_ratios(each.seconds, timed[base].seconds)
                for name, each in timed.items()
                if name != base
            }
    return found
