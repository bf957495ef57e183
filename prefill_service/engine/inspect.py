"""Runs one prompt without servers and tells what was kept where, by the engine's own path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
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
) -> dict[str, Any]:
    """Prefills a prompt and reports what was kept, as one JSON-ready object.

    Keys: prompt_tokens, kept (positions after the pruning layer), layers (layer, mode, positions:
    one list, or one a KV head), next_position, first_token_id (the most likely token), kv_bytes
    (keys and values), seconds. Raises what `capture_prefill` raises.
    """
    captured = capture_prefill(
        model,
        attention=attention,
        token_ids=token_ids,
        params=params,
        chunk_tokens=chunk_tokens,
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


def _mode(plan: PromptPlan, layer: int) -> str:
    kind = plan.slab.layouts[plan.slab.layer_layouts[layer]].kind
    if kind is PositionKind.IDENTITY:
        return "full"
    if kind is PositionKind.PER_HEAD:
        return "head"
    own = layer in plan.held_layers and plan.params.kv_select is KvSelect.LAYER
    return "layer" if own else "shared"
