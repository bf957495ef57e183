"""Oracle: rank tokens by scores that someone brings; no method that ranks on its own.

With the scores of the answer's own attention it is the bound that the others are measured against:
one ranking for the cache of every layer and for the sequence, in the architecture of the method
that is compared (its lp, m, W, rates and floor).

Shapes: G KV heads, C candidates, L prompt tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from prefill_service.ranking.base import Observation
from shared.errors import ConfigError
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True, eq=False)
class OracleRanker:
    """Ready scores, the same in every layer and KV head."""

    params: PruningParams
    """Budget and architecture: those of the method that is compared."""
    scores_L: Tensor | None
    """One score a prompt token."""

    def __post_init__(self) -> None:
        if self.scores_L is None:
            raise ConfigError(
                "the ranking method 'oracle' needs a score of every prompt token, which exists "
                "only in evaluations: choose another method to serve or to inspect"
            )

    @property
    def name(self) -> str:
        """`oracle`."""
        return "oracle"

    def settled(self, num_layers: int) -> PruningParams:
        """One choice for all layers and KV heads, since they all score alike."""
        del num_layers
        return replace(self.params, kv_select=KvSelect.SHARED)

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep))."""
        return self.params.kept_count(prompt_tokens)

    def aggregated_layers(self, pruning_layer: int) -> range:
        """The pruning layer: any one tells where the window begins."""
        return range(pruning_layer, pruning_layer + 1)

    def score(self, observation: Observation) -> Tensor:
        """The given scores before the window, float32 [G, C].

        Raises:
            ConfigError: the scores are of a prompt of another length.
        """
        assert self.scores_L is not None, "checked when it was made"
        num_keys, num_groups, _ = observation.k_LGD.shape
        if self.scores_L.shape != (num_keys,):
            raise ConfigError(
                f"oracle scores of shape {list(self.scores_L.shape)} were given for a prompt of "
                f"{num_keys} tokens: they belong to another prompt; give one score a token"
            )
        candidates = num_keys - observation.q_WHD.shape[0]
        scores_C = self.scores_L[:candidates].to(observation.k_LGD.device).float()
        return scores_C.expand(num_groups, -1)

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """The given scores, float32 [C]."""
        return layer_scores[0][0]
