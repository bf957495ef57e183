"""Random: a seeded draw. A control: a method that is not clearly ahead of it knows nothing.

Shapes: G KV heads, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prefill_service.ranking.base import Observation
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class RandomRanker:
    """The same draw in every layer and KV head; it depends on the seed and the prompt's length."""

    params: PruningParams
    """Seed, budget and architecture: those of the method that is compared."""

    @property
    def name(self) -> str:
        """`random`."""
        return "random"

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
        """A permutation of 0..C-1, float32 [G, C]; drawn on the CPU, so equal on every device."""
        num_keys, num_groups, _ = observation.k_LGD.shape
        candidates = num_keys - observation.q_WHD.shape[0]
        generator = torch.Generator().manual_seed(self.params.seed)
        places_C = torch.randperm(candidates, generator=generator).float()
        return places_C.to(observation.k_LGD.device).expand(num_groups, -1)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """The draw, float32 [C]."""
        return layer_scores[0][0]
