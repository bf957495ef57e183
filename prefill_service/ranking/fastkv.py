"""FastKV: rank tokens by the window attention of the pruning layer alone.

The ancestor of CLAA: no layer keeps its whole cache, no other layer has a say, every KV head keeps
its own choice, and the rates of the sequence and of the caches are apart (`keep_rate`, `kv_rate`).
The average pool is used, as in the paper's class defaults; its command line takes the maximum.

Shapes: G KV heads, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from prefill_service.ranking.base import Observation
from prefill_service.ranking.window_attention import observed_scores
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class FastKvRanker:
    """Single-layer window attention."""

    params: PruningParams
    """Window, pool, budget and layer."""

    @property
    def name(self) -> str:
        """`fastkv`."""
        return "fastkv"

    def settled(self, num_layers: int) -> PruningParams:
        """One layer is aggregated, none keeps its whole cache, each KV head chooses."""
        del num_layers
        return replace(
            self.params, aggregation_window=1, deferred_layers=0, kv_select=KvSelect.HEAD
        )

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep))."""
        return self.params.kept_count(prompt_tokens)

    def aggregated_layers(self, pruning_layer: int) -> range:
        """The pruning layer."""
        return range(pruning_layer, pruning_layer + 1)

    def score(self, observation: Observation) -> Tensor:
        """Pooled attention mass of the window, float32 [G, C]."""
        return observed_scores(observation, pool_kernel=self.params.pool_kernel)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """The sum over KV heads, float32 [C]."""
        (scores_GC,) = layer_scores
        return scores_GC.sum(dim=0)
