"""How close DELTA stays to dense decode with a set of full layers: all sets at once, known tokens.

Recall says how much attention a choice holds, not how much the answer depends on it; this does.

Shapes: B rows (dense first), V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from loadtest.calibration.delta_samples import ANSWER_TOKENS, DeltaSample
from loadtest.quality.answer import generate
from loadtest.sparsity.comparison import divergence
from loadtest.sparsity.prefills import prompt_tensors
from loadtest.sparsity.rows import row_batch
from prefill_service.engine.evaluate import EvaluatedPrompt, rank_and_prefill
from shared.model.probe import probe_attention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams, SparsityParams

FullLayers = tuple[int, ...]

WHOLE = PruningParams(pruning_layer=0, ranker="full", keep_rate=1.0)
"""A prompt is read in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """One set of full layers against dense decode over the same KV; means over samples."""

    kl: float
    """KL(dense || DELTA) of the next token, nats."""
    agreement: float
    """Share of top tokens that are dense's."""


def tail_of(model: Transformer, full: EvaluatedPrompt, sample: DeltaSample) -> tuple[int, ...]:
    """The tokens that follow a sample's prompt: its own, or the model's greedy answer."""
    return sample.tail_ids or tuple(
        generate(model, full, max_tokens=ANSWER_TOKENS, stop_ids=model.config.eos_token_ids)
    )


@torch.inference_mode()
def measure_sets(
    model: Transformer,
    samples: Sequence[DeltaSample],
    sets: Sequence[FullLayers],
    *,
    params: SparsityParams,
    steps: int,
    progress: Callable[[int], None],
) -> list[Closeness]:
    """Continues every sample under every set, in order.

    Args:
        model: the decoder.
        samples: what is continued; those without a second token are left out.
        sets: full layers, at least one set.
        params: K and L; DELTA's own policy whatever they name.
        steps: decode steps of a sample at most.
        progress: told the number of samples that are done.
    """
    attention = probe_attention(model.device).backend
    arms = [replace(params, policy="delta", full_layers=full_layers) for full_layers in sets]
    kls: list[list[float]] = [[] for _ in sets]
    same: list[list[float]] = [[] for _ in sets]
    for done, sample in enumerate(samples, start=1):
        full = rank_and_prefill(
            model, attention=attention, token_ids=sample.prompt_ids, params=WHOLE
        )
        tail_ids = tail_of(model, full, sample)[: steps + 1]
        if len(tail_ids) > 1:
            kl_B, same_B = _continue(model, full, arms, tail_ids=tail_ids)
            for index in range(len(sets)):
                kls[index].append(kl_B[index + 1])
                same[index].append(same_B[index + 1])
        progress(done)
    return [
        Closeness(kl=fmean(own_kl), agreement=fmean(own_same))
        for own_kl, own_same in zip(kls, same, strict=True)
        if own_kl
    ]


def _continue(
    model: Transformer,
    full: EvaluatedPrompt,
    arms: Sequence[SparsityParams],
    *,
    tail_ids: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Mean KL and agreement of every row, dense first, over the tail's predictions."""
    batch = row_batch(
        model,
        prompt_tensors(full),
        params=[None, *arms],
        first_token=tail_ids[0],
        room=len(tail_ids),
    )
    kls, same = [], []
    for token in tail_ids[1:]:
        computed = batch.forward()
        log_BV = computed.logits_BV.log_softmax(dim=-1)
        top_B = log_BV.argmax(dim=-1)
        kls.append(divergence(log_BV[0], log_BV))
        same.append((top_B == top_B[0]).double())
        computed.accept([token] * (len(arms) + 1))
    return torch.stack(kls).mean(dim=0).tolist(), torch.stack(same).mean(dim=0).tolist()
