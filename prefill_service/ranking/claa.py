"""CLAA: rank tokens by the attention of the last window, combined over several layers.

A token that the prompt's last W tokens look at in any of the n layers up to the pruning layer is
worth keeping, even if one layer alone would have missed it; layers 0..m-1 keep their whole cache.
Training-free. The paper takes the maximum of the plain scores (`sum_max`); its authors' code
normalises each KV head's scores first (`zhead_max`), their analysis each layer's (`zsum_max`);
`rank_max` is ours: it compares ranks, so that a layer with collapsed attention cannot spend the
whole budget.

Shapes: G KV heads, C candidates, n aggregated layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefill_service.ranking.base import Observation
from prefill_service.ranking.window_attention import observed_scores
from shared.types.methods import Aggregation, PruningParams

_STD_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class ClaaRanker:
    """Cross-layer attention aggregation with the given parameters."""

    params: PruningParams
    """Window, pool, aggregation and budget."""

    @property
    def name(self) -> str:
        """`claa`."""
        return "claa"

    def settled(self, num_layers: int) -> PruningParams:
        """As they are: every parameter is CLAA's own."""
        del num_layers
        return self.params

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep))."""
        return self.params.kept_count(prompt_tokens)

    def aggregated_layers(self, pruning_layer: int) -> range:
        """The last n layers up to the pruning layer, whether or not they keep their whole cache."""
        first = max(0, pruning_layer - self.params.aggregation_window + 1)
        return range(first, pruning_layer + 1)

    def score(self, observation: Observation) -> Tensor:
        """Pooled attention mass of the window, float32 [G, C]."""
        return observed_scores(observation, pool_kernel=self.params.pool_kernel)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """Maximum over layers of the scores in the form that `aggregation` names, float32 [C]."""
        assert layer_scores, "at least the pruning layer is aggregated"
        stacked_nGC = torch.stack(tuple(layer_scores))
        if self.params.aggregation is Aggregation.ZHEAD_MAX:
            return _standardised(stacked_nGC).flatten(0, 1).amax(dim=0)
        sums_nC = stacked_nGC.sum(dim=1)
        if self.params.aggregation is Aggregation.ZSUM_MAX:
            sums_nC = _standardised(sums_nC)
        elif self.params.aggregation is Aggregation.RANK_MAX:
            sums_nC = _ascending_ranks(sums_nC)
        return sums_nC.amax(dim=0)


def _standardised(scores_xC: Tensor) -> Tensor:
    """Zero mean and unit deviation (unbiased) over positions; zero where there is one position."""
    centred_xC = scores_xC - scores_xC.mean(dim=-1, keepdim=True)
    if scores_xC.shape[-1] < 2:  # noqa: PLR2004 - a deviation needs two values
        return centred_xC
    return centred_xC / (scores_xC.std(dim=-1, keepdim=True) + _STD_FLOOR)


def _ascending_ranks(scores_xC: Tensor) -> Tensor:
    """Place of each value in its row's ascending order, from 0; equal values in row order."""
    order_xC = torch.sort(scores_xC, dim=-1, stable=True).indices
    places_C = torch.arange(scores_xC.shape[-1], device=scores_xC.device).expand_as(order_xC)
    return torch.empty_like(order_xC).scatter_(-1, order_xC, places_C).float()
