"""How well a ranking agrees with the oracle's: Spearman's rho, in all and by layer.

Shapes: N values compared, X any leading dimensions, L prompt tokens, G KV heads, C = L - W
candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loadtest.quality.oracle import AskedPrompt
from prefill_service.ranking.claa import ClaaRanker
from shared.types.methods import Aggregation, PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCorrelation:
    """Agreement of one prompt's window scores with the oracle."""

    single: tuple[float, ...]
    """Rho of each layer alone, its KV heads added."""
    aggregated: Mapping[Aggregation, tuple[float, ...]]
    """Rho of the layers lp-n+1..lp combined, for every lp, by form of aggregation."""
    aggregation_window: int
    """n."""


def average_ranks(values_XN: Tensor) -> Tensor:
    """Place of each value in ascending order along the last axis, from 0; equals share their mean.

    Float64, as a rank of a long prompt times another does not fit float32 exactly.
    """
    values_XN = values_XN.contiguous()
    sorted_XN = values_XN.sort(dim=-1).values
    below_XN = torch.searchsorted(sorted_XN, values_XN, right=False)
    up_to_XN = torch.searchsorted(sorted_XN, values_XN, right=True)
    return (below_XN + up_to_XN - 1).double() / 2.0


def spearman(first_XN: Tensor, second_XN: Tensor) -> Tensor:
    """Rank correlation along the last axis, float64 [X]; leading axes broadcast.

    0 where either side is constant: it orders nothing, so it agrees with nothing.
    """
    a_XN, b_XN = (_centred(average_ranks(values)) for values in (first_XN, second_XN))
    scale_X = (a_XN.square().sum(-1) * b_XN.square().sum(-1)).sqrt()
    rho_X = (a_XN * b_XN).sum(-1) / scale_X
    return torch.where(scale_X > 0, rho_X, torch.zeros_like(rho_X))


def agreement(score_L: Tensor, oracle_L: Tensor) -> float:
    """Rho of a ranker's scores with the oracle's, over the positions that both have ranked.

    A score may be shorter than the prompt (its window is not ranked); positions with a score that
    is not finite are forced, not ranked, and left out.
    """
    num_common = min(score_L.shape[-1], oracle_L.shape[-1])
    score_N, oracle_N = score_L[:num_common], oracle_L[:num_common].to(score_L.device)
    ranked_N = score_N.isfinite() & oracle_N.isfinite()
    return float(spearman(score_N[ranked_N].float(), oracle_N[ranked_N].float()))


@torch.inference_mode()
def layer_correlation(
    asked: AskedPrompt,
    oracle_L: Tensor,
    *,
    params: PruningParams,
    aggregations: Sequence[Aggregation] = tuple(Aggregation),
) -> LayerCorrelation:
    """Compares the window scores of every layer, alone and combined, with the oracle's scores.

    Args:
        asked: the prompt's keys and window queries.
        oracle_L: the oracle's scores.
        params: window, pool and number of aggregated layers; its other fields do not matter here.
        aggregations: the forms to try.
    """
    ranker = ClaaRanker(params)
    scores = [
        ranker.score(asked.observation(layer, window=params.observation_window))
        for layer in range(len(asked.keys))
    ]
    oracle_C = oracle_L[: scores[0].shape[-1]]
    aggregated = {
        form: _aggregated_rhos(scores, oracle_C, params=replace(params, aggregation=form))
        for form in aggregations
    }
    single_YC = torch.stack([scores_GC.sum(dim=0) for scores_GC in scores])
    return LayerCorrelation(
        single=_rhos(single_YC, oracle_C),
        aggregated=aggregated,
        aggregation_window=params.aggregation_window,
    )


def _aggregated_rhos(
    scores: Sequence[Tensor], oracle_C: Tensor, *, params: PruningParams
) -> tuple[float, ...]:
    ranker = ClaaRanker(params)
    combined = []
    for layer in range(len(scores)):
        layers = ranker.aggregated_layers(layer)
        combined.append(ranker.aggregate(scores[layers.start : layers.stop]))
    return _rhos(torch.stack(combined), oracle_C)


def _rhos(scores_YC: Tensor, oracle_C: Tensor) -> tuple[float, ...]:
    return tuple(spearman(scores_YC, oracle_C).tolist())


def _centred(ranks_XN: Tensor) -> Tensor:
    return ranks_XN - ranks_XN.mean(dim=-1, keepdim=True)
