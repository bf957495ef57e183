"""Both halves in one process, without servers: a prefill's KV handed to a decode row as tensors."""

from collections.abc import Sequence

import torch

from decode_service.engine.solo import PromptTensors
from prefill_service.engine.inspect import CapturedPrefill, capture_prefill
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

NEAR_TIE = 1e-3
"""Top-2 logit gap below which the next token is left open."""


def prefill(model: Transformer, token_ids: Sequence[int], params: PruningParams) -> CapturedPrefill:
    """The engine's own prefill, its KV kept in memory."""
    return capture_prefill(
        model, attention=TorchAttention(), token_ids=token_ids, params=params, chunk_tokens=256
    )


def hand_over(captured: CapturedPrefill) -> PromptTensors:
    """What crosses to the decode side."""
    slab = captured.plan.slab
    return PromptTensors(
        prompt_tokens=captured.plan.prompt_tokens,
        layouts=slab.layouts,
        layer_layouts=slab.layer_layouts,
        positions=captured.kv.positions_RN,
        keys_values=[captured.kv.layer(index) for index in range(len(slab.layer_layouts))],
    )


def first_token(captured: CapturedPrefill) -> int:
    """The most likely token after the prompt."""
    return int(captured.output.logits_V.argmax())


def assert_same_tokens(tokens: Sequence[int], gaps: Sequence[float], wanted: Sequence[int]) -> None:
    """Equality: the same up to the first token whose top-2 logits were a near-tie.

    Args:
        tokens: ours.
        gaps: top-2 logit gap where each of them was drawn.
        wanted: theirs.
    """
    assert len(tokens) == len(gaps) == len(wanted)
    for index, (ours, gap, theirs) in enumerate(zip(tokens, gaps, wanted, strict=True)):
        if ours != theirs:
            assert gap < NEAR_TIE, f"token {index} differs: {ours} against {theirs}, gap {gap}"
            return


def top2_gap(logits_V: torch.Tensor) -> float:
    """Difference of the two largest logits."""
    best, second = logits_V.topk(2).values.tolist()
    return float(best - second)
