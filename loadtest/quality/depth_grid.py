"""Scores every depth, window, pool and form of aggregation on one prompt, from one dense pass.

A layer's window scores do not depend on where the prompt would be pruned, so one pass gives the
pruning score of every candidate: how well it agrees with the oracle, and whether the tokens that it
would keep hold the needle.

Shapes: L prompt tokens, C candidates, G KV heads, Y layers (each a depth to prune at), W windows, P
pools, A forms of aggregation, M layer counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from loadtest.quality.correlation import spearman
from loadtest.quality.oracle import AskedPrompt
from loadtest.quality.tasks.sample import Span
from prefill_service.ranking.claa import ClaaRanker
from prefill_service.ranking.select import select_positions
from prefill_service.ranking.window_attention import pooled
from shared.types.methods import Aggregation, PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    """What is tried at every depth."""

    windows: tuple[int, ...] = (8, 16, 32, 64)
    """Observation windows W, ascending."""
    pools: tuple[int, ...] = (7, 13, 25)
    """Pool kernels, ascending from the paper's. A pool as wide as a sentence keeps a value of many
    tokens whole, of which the question's last tokens see little but the beginning."""
    layer_counts: tuple[int, ...] = (1, 2, 4, 6, 8)
    """Aggregated layers n, ascending from 1."""
    aggregations: tuple[Aggregation, ...] = tuple(Aggregation)
    """Forms of aggregation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridScores:
    """Both measures of every candidate on one prompt, or on several on average."""

    rho_WPAMY: Tensor
    """Spearman's rho with the oracle, float64."""
    coverage_WPAMY: Tensor | None
    """Share of the needle's tokens that are kept, float64; None without a needle."""


@torch.inference_mode()
def score_grid(
    asked: AskedPrompt,
    oracle_L: Tensor,
    *,
    needles: Sequence[Span],
    grid: SweepGrid,
    params: PruningParams,
) -> GridScores:
    """Every candidate of the grid at every depth of the model, on one prompt.

    Args:
        asked: keys and window queries of the prompt, at least as many as the widest window.
        oracle_L: the oracle's score of each token.
        needles: tokens that must be kept.
        grid: what to try.
        params: budget and protection; the grid's own parameters replace its.
    """
    needle_L = _marked(needles, like=oracle_L)
    rhos: list[Tensor] = []
    coverages: list[Tensor] = []
    for window in grid.windows:
        tried = replace(params, observation_window=window, pool_kernel=1)
        masses = [
            ClaaRanker(tried).score(asked.observation(layer, window=window))
            for layer in range(len(asked.keys))
        ]
        for pool, form in product(grid.pools, grid.aggregations):
            layers = [pooled(mass_GC, pool) for mass_GC in masses]
            ranker = ClaaRanker(replace(tried, aggregation=form))
            single_YC = torch.stack([ranker.aggregate([scores_GC]) for scores_GC in layers])
            for layer_count in grid.layer_counts:
                combined_YC = sliding_max(single_YC, layer_count)
                rhos.append(spearman(combined_YC, oracle_L[: combined_YC.shape[1]]).cpu())
                if needle_L is not None:
                    coverages.append(_coverage(combined_YC, needle_L, params=tried))
    axes = (grid.windows, grid.pools, grid.aggregations, grid.layer_counts)
    shape = (*map(len, axes), -1)
    return GridScores(
        rho_WPAMY=torch.stack(rhos).view(shape),
        coverage_WPAMY=torch.stack(coverages).view(shape) if coverages else None,
    )


def sliding_max(single_YC: Tensor, layer_count: int) -> Tensor:
    """Maximum over each layer and the `layer_count` - 1 before it, as far as there are any.

    Every form of aggregation treats layers apart and then takes their maximum, so this equals
    aggregating each group of layers anew.
    """
    combined_YC = single_YC.clone()
    for back in range(1, min(layer_count, single_YC.shape[0])):
        combined_YC[back:] = torch.maximum(combined_YC[back:], single_YC[:-back])
    return combined_YC


def mean_scores(found: Sequence[GridScores]) -> GridScores:
    """Mean over prompts, at least one; coverage over those that have a needle."""
    covered = [one.coverage_WPAMY for one in found if one.coverage_WPAMY is not None]
    return GridScores(
        rho_WPAMY=torch.stack([one.rho_WPAMY for one in found]).mean(dim=0),
        coverage_WPAMY=torch.stack(covered).mean(dim=0) if covered else None,
    )


def _coverage(combined_YC: Tensor, needle_L: Tensor, *, params: PruningParams) -> Tensor:
    num_tokens = needle_L.shape[0]
    kept_YN = select_positions(
        combined_YC,
        prompt_tokens=num_tokens,
        kept_tokens=params.kept_count(num_tokens),
        protect_first=params.protect_first,
    )
    return (needle_L[kept_YN].sum(dim=1).double() / needle_L.sum()).cpu()


def _marked(needles: Sequence[Span], *, like: Tensor) -> Tensor | None:
    """Which tokens belong to a needle, bool [L]; None when there is none."""
    if not needles:
        return None
    needle_L = torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    for start, stop in needles:
        needle_L[start:stop] = True
    return needle_L
