"""Recency: the last tokens matter most, whatever they say. A control that every method must beat.

Shapes: G KV heads, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prefill_service.ranking.base import Observation
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class RecencyRanker:
    """Position is the score."""

    params: PruningParams
    """Budget and architecture: those of the method that is compared."""

    @property
    def name(self) -> str:
        """`recency`."""
        return "recency"

    def settled(self, num_layers: int) -> PruningParams:
        """One choice for all layers and KV heads, since they all score alike."""
        del num_layers
        return replace(self.params, kv_select=KvSelect.SHARED)

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep))."""
        return self.params.kept_count(prompt_tokens)

    def aggregated_layers(self, pruning_layer: int) -> range:
        """The pruning layer: any one tells how many tokens there are."""
        return range(pruning_layer, pruning_layer + 1)

    def score(self, observation: Observation) -> Tensor:
        """The position, float32 [G, C]."""
        num_keys, num_groups, _ = observation.k_LGD.shape
        candidates = num_keys - observation.q_WHD.shape[0]
        places_C = torch.arange(candidates, dtype=torch.float32, device=observation.k_LGD.device)
        return places_C.expand(num_groups, -1)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """The position, float32 [C]."""
        return layer_scores[0][0]
