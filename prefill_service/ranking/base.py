"""What a ranking method sees and what it must answer.

Shapes: W window rows, H query heads, G KV heads, D head size, L prompt tokens, C = L - W candidates
(the tokens before the window, the only ones that are ranked).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One layer's view of a prompt: all that a ranker may look at."""

    q_WHD: Tensor
    """Queries of the last W prompt tokens, after RoPE."""
    k_LGD: Tensor
    """Keys of the whole prompt, after RoPE."""


class Ranker(Protocol):
    """A method that scores prompt tokens; stateless, so one object serves any number of prompts."""

    @property
    def name(self) -> str:
        """The name it is registered under."""

    def kept_count(self, prompt_tokens: int) -> int:
        """Tokens to keep of a prompt, window included, in [1, prompt_tokens]."""

    def aggregated_layers(self, pruning_layer: int) -> range:
        """Layers whose scores `aggregate` needs, ascending; empty when it looks at nothing."""

    def score(self, observation: Observation) -> Tensor:
        """Scores of one layer, float32 [G, C]: higher matters more to that KV head."""

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """One pruning score a candidate, float32 [C], from the [G, C] of the aggregated layers."""
