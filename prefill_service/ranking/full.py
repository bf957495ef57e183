"""Full: nothing is ranked and everything is kept, the baseline of every comparison.

Shapes: G KV heads, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prefill_service.ranking.base import Observation
from shared.types.methods import PruningParams


@dataclass(frozen=True, slots=True)
class FullRanker:
    """Every token matters as much as any other."""

    params: PruningParams
    """Accepted like by every ranker; no budget applies."""

    @property
    def name(self) -> str:
        """`full`."""
        return "full"

    def settled(self, num_layers: int) -> PruningParams:
        """Both rates are 1."""
        del num_layers
        return replace(self.params, keep_rate=1.0, kv_rate=None)

    def kept_count(self, prompt_tokens: int) -> int:
        """All of them."""
        return prompt_tokens

    def aggregated_layers(self, pruning_layer: int) -> range:
        """None: the method looks at no layer."""
        return range(pruning_layer, pruning_layer)

    def score(self, observation: Observation) -> Tensor:
        """Equal scores, float32 [G, C]."""
        num_keys, num_groups, _ = observation.k_LGD.shape
        num_candidates = num_keys - observation.q_WHD.shape[0]
        return torch.zeros((num_groups, num_candidates), device=observation.k_LGD.device)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """Equal scores, float32 [C]."""
        return torch.zeros(layer_scores[0].shape[-1], device=layer_scores[0].device)
