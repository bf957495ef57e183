"""Time to the first token of one prompt: full and pruned prefill against transformers.

Arms alternate in one process on the same prompt of real text, each keeping its KV in memory.
Nothing is measured before our unpruned logits equal transformers'.

Shapes: V vocabulary.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loadtest.micro.measure import provenance
from loadtest.micro.prompt import real_prompt
from loadtest.spread import paired_ratios, spread
from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from prefill_service.engine.runner import DEFAULT_CHUNK_TOKENS
from shared.errors import ConfigError, InternalError
from shared.kv.geometry import KvGeometry
from shared.model.probe import probe_attention
from shared.model.weights import LoadedModel, load_model
from shared.types.methods import PruningParams

TOLERANCE = 1e-3
"""Largest difference of a logit from transformers', float32."""

_PEER = "transformers"
_FULL = "keep 1"


class _TransformersPeer:
    """The same prompt through transformers: sdpa attention, a KV cache, one row of logits."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  slow to import

        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )

    @torch.inference_mode()
    def run(self, token_ids: list[int]) -> tuple[Tensor, float]:
        """Logits [V] of the next token, and the seconds taken."""
        started = time.perf_counter()
        output = self._model(torch.tensor([token_ids]), use_cache=True, logits_to_keep=1)
        logits_V: Tensor = output.logits[0, -1]
        return logits_V, time.perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """Our prefill of one prompt at one keep rate."""

    loaded: LoadedModel
    token_ids: list[int]
    params: PruningParams

    def run(self) -> tuple[CapturedPrefill, float]:
        """What it leaves, and the seconds taken."""
        started = time.perf_counter()
        captured = capture_prefill(
            self.loaded.model,
            attention=probe_attention(self.loaded.model.device).backend,
            token_ids=self.token_ids,
            params=self.params,
            chunk_tokens=DEFAULT_CHUNK_TOKENS,
        )
        return captured, time.perf_counter() - started


def bench_prefill(
    *,
    model: str,
    tokens: int,
    keep: list[float],
    lp: int | None,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measures seconds to the first logits of a prompt of real text.

    Args:
        model: catalog name, folder or hub id; runs in float32.
        tokens: prompt tokens.
        keep: keep rates, one arm each; the unpruned arm always runs.
        lp: pruning layer; None takes the model's profile, as for every other parameter.
        repeats: runs of each arm.
        progress: is told what happens, one line at a time.

    Returns:
        A JSON-ready object: parity, arms (seconds, kept_tokens, kv_bytes, select_seconds),
        ratio_to_transformers and ratio_to_full (paired, smaller is faster), pruning, provenance.

    Raises:
        ConfigError: a size, a rate or the pruning layer does not fit.
        InternalError: our unpruned logits are not transformers'.
    """
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}: an arm runs at least once")
    loaded = load_model(model)
    base = loaded.profile.pruning
    base = replace(base, pruning_layer=base.pruning_layer if lp is None else lp)
    token_ids = real_prompt(loaded, tokens=tokens)
    arms = {
        _arm_name(rate): _Arm(
            loaded=loaded, token_ids=token_ids, params=replace(base, keep_rate=rate)
        )
        for rate in sorted({1.0, *keep}, reverse=True)
    }
    progress(f"transformers and our unpruned prefill read {tokens} tokens, to compare logits")
    peer = _TransformersPeer(loaded.folder)
    parity = _check_parity(peer, arms[_FULL])
    progress(f"largest difference of a logit: {parity['max_difference']:.2e}")
    last, seconds = _alternate(peer, arms, repeats=repeats, progress=progress)
    return {
        "benchmark": "prefill",
        "model": loaded.name,
        "dtype": "float32",
        "tokens": tokens,
        "repeats": repeats,
        "chunk_tokens": DEFAULT_CHUNK_TOKENS,
        "attention": probe_attention(loaded.model.device).backend.name,
        "pruning": _plain(base),
        "parity": parity,
        **_figures(last, seconds, geometry=loaded.model.geometry()),
        **provenance(
            command=_command(model=model, tokens=tokens, keep=keep, lp=lp, repeats=repeats)
        ),
    }


def _figures(
    last: dict[str, CapturedPrefill], seconds: dict[str, list[float]], *, geometry: KvGeometry
) -> dict[str, Any]:
    """What every arm took and left, and the paired ratios."""
    arms: dict[str, dict[str, Any]] = {
        name: {"seconds": spread(taken), "runs": taken} for name, taken in seconds.items()
    }
    for name, captured in last.items():
        arms[name] |= _left(captured, geometry)
    return {
        "arms": arms,
        "ratio_to_transformers": {
            name: paired_ratios(seconds[name], seconds[_PEER]) for name in last
        },
        "ratio_to_full": {name: paired_ratios(seconds[name], seconds[_FULL]) for name in last},
    }


def _command(*, model: str, tokens: int, keep: list[float], lp: int | None, repeats: int) -> str:
    rates = ",".join(f"{rate:g}" for rate in keep)
    depth = "" if lp is None else f" --lp {lp}"
    return (
        f"tandem bench prefill --model {model} --tokens {tokens} --keep {rates}{depth} "
        f"--repeats {repeats}"
    )


def _arm_name(rate: float) -> str:
    return f"keep {rate:g}"


def _plain(params: PruningParams) -> dict[str, Any]:
    """Parameters with enums as their names; the keep rate differs by arm."""
    values = asdict(params) | {"bypass_below": 0}
    del values["keep_rate"]
    return {name: v.value if isinstance(v, Enum) else v for name, v in values.items()}


def _left(captured: CapturedPrefill, geometry: KvGeometry) -> dict[str, Any]:
    slots = sum(captured.plan.slab.slots_of(layer) for layer in range(geometry.num_layers))
    return {
        "kept_tokens": captured.plan.summary.kept_tokens,
        "kv_bytes": geometry.kv_bytes(slots),
        "select_seconds": captured.output.select_seconds,
    }


def _check_parity(peer: _TransformersPeer, full: _Arm) -> dict[str, Any]:
    """Compares logits; also warms both arms up."""
    theirs_V, _ = peer.run(full.token_ids)
    ours_V = full.run()[0].output.logits_V
    difference = float((ours_V - theirs_V).abs().max())
    if not difference <= TOLERANCE:
        raise InternalError(
            f"our unpruned logits differ from transformers' by up to {difference:.4g}, more than "
            f"{TOLERANCE:g}: our prefill is wrong, so its speed means nothing; report this"
        )
    return {"max_difference": difference, "tolerance": TOLERANCE}


def _alternate(
    peer: _TransformersPeer,
    arms: dict[str, _Arm],
    *,
    repeats: int,
    progress: Callable[[str], None],
) -> tuple[dict[str, CapturedPrefill], dict[str, list[float]]]:
    """Runs all arms once a repeat; gives what each left last, and the seconds of every run."""
    last: dict[str, CapturedPrefill] = {}
    seconds: dict[str, list[float]] = {name: [] for name in (_PEER, *arms)}
    for repeat in range(repeats):
        seconds[_PEER].append(peer.run(next(iter(arms.values())).token_ids)[1])
        for name, arm in arms.items():
            last.pop(name, None)
            last[name], taken = arm.run()
            seconds[name].append(taken)
        times = ", ".join(f"{name} {taken[-1]:.2f}" for name, taken in seconds.items())
        progress(f"repeat {repeat + 1} of {repeats}, seconds: {times}")
    return last, seconds
