"""SnapKV: every layer's cache keeps what its own window attends to; the sequence stays whole.

Saves cache, not computation. KV heads choose for themselves from the sum over their query heads
(the original repeats keys first and so stores a choice for every query head); pool and window are
those of the parameters, not its own 64 and maximum.

Shapes: G KV heads, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from prefill_service.ranking.base import Observation
from prefill_service.ranking.window_attention import observed_scores
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class SnapKvRanker:
    """Window attention of each layer for its own cache."""

    params: PruningParams
    """Window, pool and budget."""

    @property
    def name(self) -> str:
        """`snapkv`."""
        return "snapkv"

    def settled(self, num_layers: int) -> PruningParams:
        """Each KV head of every layer chooses; `kv_rate`, where given, is the only rate."""
        return replace(
            self.params,
            pruning_layer=num_layers - 1,
            keep_rate=self.params.kv_rate or self.params.keep_rate,
            kv_rate=None,
            aggregation_window=1,
            deferred_layers=0,
            kv_select=KvSelect.HEAD,
        )

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep)) entries of each cache."""
        return self.params.kept_count(prompt_tokens)

    def aggregated_layers(self, pruning_layer: int) -> range:
        """None: the sequence is not pruned."""
        return range(pruning_layer, pruning_layer)

    def score(self, observation: Observation) -> Tensor:
        """Pooled attention mass of the window, float32 [G, C]."""
        return observed_scores(observation, pool_kernel=self.params.pool_kernel)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """The sum over KV heads of one layer, float32 [C]; asked for by nobody but comparisons."""
        return layer_scores[-1].sum(dim=0)
