"""Runs one prompt without servers and tells what was kept where, by the engine's own path.

Methods that no worker serves take the path of the evaluations.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.evaluate import EvaluatedPrompt, LayerCache, rank_and_prefill
from prefill_service.engine.plan import PromptPlan, needs_evaluation, plan_prompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from shared.errors import InvalidRequestError
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.kv_manifest import PositionKind, SegmentKind
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import RequestOptions

NO_OVERRIDES = RequestOptions()
"""What a request without options asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPrefill:
    """A prompt's prefill with everything it left behind."""

    plan: PromptPlan
    """What was decided."""
    output: PrefillOutput
    """Logits, kept positions, times."""
    kv: CapturedKv
    """Keys, values and positions."""


def capture_prefill(
    model: Transformer,
    *,
    attention: PrefillAttention,
    token_ids: Sequence[int],
    params: PruningParams,
    chunk_tokens: int,
    options: RequestOptions = NO_OVERRIDES,
) -> CapturedPrefill:
    """Prefills a prompt and keeps its KV in memory; a short prompt is pruned like any other.

    Raises:
        InvalidRequestError: an empty prompt, a token id outside the vocabulary, or overrides that
            do not fit.
        ContextLengthError: the prompt is longer than the model's context.
        ConfigError: the model does not have the pruning layer.
    """
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=replace(params, bypass_below=0),
        options=options,
        prompt_tokens=len(token_ids),
    )
    kv = CapturedKv(plan)
    runner = PrefillRunner(model, attention=attention, chunk_tokens=chunk_tokens)
    output = runner.run(token_ids=token_ids, plan=plan, observer=kv, stop=lambda: False)
    return CapturedPrefill(plan=output.plan, output=output, kv=kv)


def inspect_prune(
    model: Transformer,
    *,
    attention: PrefillAttention,
    token_ids: Sequence[int],
    params: PruningParams,
    chunk_tokens: int,
    options: RequestOptions = NO_OVERRIDES,
) -> dict[str, Any]:
    """Prefills a prompt and reports what was kept, as one JSON-ready object.

    Keys: prompt_tokens, kept (positions after the pruning layer), layers (layer, mode, positions:
    one list, or one a KV head), next_position, first_token_id (the most likely token), kv_bytes
    (keys and values), seconds. Raises what `capture_prefill` raises.
    """
    options.check_pruning()
    wanted = params
    if options.keep_rate is not None:
        wanted = replace(params, keep_rate=options.keep_rate, mass=None)
    if needs_evaluation(wanted):
        if replace(options, keep_rate=None) != NO_OVERRIDES:
            raise InvalidRequestError(
                f"the ranking method {params.ranker!r} with these rates is not served, only "
                "evaluated, and takes a keep rate alone: leave out mass and protected ranges"
            )
        started = time.perf_counter()
        evaluated = rank_and_prefill(model, attention=attention, token_ids=token_ids, params=wanted)
        seconds = time.perf_counter() - started
        return _evaluated_report(evaluated, prompt_tokens=len(token_ids), seconds=seconds)
    captured = capture_prefill(
        model,
        attention=attention,
        token_ids=token_ids,
        params=params,
        chunk_tokens=chunk_tokens,
        options=options,
    )
    return prune_report(captured)


def prune_report(captured: CapturedPrefill) -> dict[str, Any]:
    """The object of `inspect_prune` for a prefill that was captured."""
    plan, output = captured.plan, captured.output
    layers = [
        {
            "layer": index,
            "mode": _mode(plan, index),
            "positions": captured.kv.layer_positions(index).tolist(),
        }
        for index in range(len(plan.slab.layer_layouts))
    ]
    kv_bytes = sum(s.length for s in plan.slab.segments if s.kind is SegmentKind.KV)
    return {
        "prompt_tokens": plan.prompt_tokens,
        "kept": output.kept_N.tolist(),
        "layers": layers,
        "next_position": plan.prompt_tokens,
        "first_token_id": int(output.logits_V.argmax()),
        "kv_bytes": kv_bytes,
        "seconds": output.prefill_seconds,
    }


def _evaluated_report(
    evaluated: EvaluatedPrompt, *, prompt_tokens: int, seconds: float
) -> dict[str, Any]:
    """The object of `inspect_prune` for a method that no worker serves."""
    layers = [
        {
            "layer": index,
            "mode": _evaluated_mode(cache, prompt_tokens=prompt_tokens),
            "positions": cache.positions_RN.tolist(),
        }
        for index, cache in enumerate(evaluated.layer_kv)
    ]
    return {
        "prompt_tokens": prompt_tokens,
        "kept": evaluated.kept_N.tolist(),
        "layers": layers,
        "next_position": evaluated.next_position,
        "first_token_id": int(evaluated.logits_V.argmax()),
        "kv_bytes": sum(c.keys_NGD.nbytes + c.values_NGD.nbytes for c in evaluated.layer_kv),
        "seconds": seconds,
    }


def _evaluated_mode(cache: LayerCache, *, prompt_tokens: int) -> str:
    rows, slots = cache.positions_RN.shape
    if rows > 1:
        return "head"
    return "full" if slots == prompt_tokens else "shared"


def _mode(plan: PromptPlan, layer: int) -> str:
    kind = plan.slab.layouts[plan.slab.layer_layouts[layer]].kind
    if kind is PositionKind.IDENTITY:
        return "full"
    if kind is PositionKind.PER_HEAD:
        return "head"
    choosing = layer in plan.held_layers or layer in plan.trimmed_layers
    own = choosing and plan.params.kv_select is KvSelect.LAYER
    return "layer" if own else "shared"
