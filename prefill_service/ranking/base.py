"""What a ranking method sees and what it must answer.

A method ranks in one of two ways. A `Ranker` looks at layers of the main pass while it runs; the
sequence is pruned at the pruning layer, or never when the method aggregates nothing. A
`PromptRanker` looks at the prompt before the main pass, which then runs on the chosen tokens only.

Shapes: W window rows, H query heads, G KV heads, D head size, L prompt tokens, C candidates: the
tokens that are ranked, 0..C-1; those after them are always kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

from torch import Tensor

from shared.model.transformer import Transformer
from shared.types.methods import PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One layer's view of a prompt: all that a ranker may look at."""

    q_WHD: Tensor
    """Queries of the last W prompt tokens, after RoPE."""
    k_LGD: Tensor
    """Keys of the whole prompt, after RoPE."""
    lse_WH: Tensor | None = None
    """Natural log-sum-exp of these queries' scaled logits, float32, if their attention told it."""
    by_kernel: bool = False
    """Whether scores come from the Triton kernel: on a CUDA device."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SideInputs:
    """What some methods need beside the prompt; a worker that serves has none of it."""

    oracle_L: Tensor | None = None
    """`oracle`: a ready score of every prompt token."""
    draft: Transformer | None = None
    """`speculative`: a second model with the same vocabulary."""


@runtime_checkable
class Ranker(Protocol):
    """Scores prompt tokens by layers of the main pass; stateless, serves any number of prompts."""

    @property
    def name(self) -> str:
        """The name it is registered under."""

    def settled(self, num_layers: int) -> PruningParams:
        """The parameters as this method means them in a model of `num_layers` layers."""

    def kept_count(self, prompt_tokens: int) -> int:
        """Tokens to keep of a prompt, window included, in [1, prompt_tokens]."""

    def aggregated_layers(self, pruning_layer: int) -> range:
        """Layers whose scores `aggregate` needs, ascending; empty: the sequence is not pruned."""

    def score(self, observation: Observation) -> Tensor:
        """Scores of one layer, float32 [G, C]: higher matters more to that KV head."""

    def aggregate(self, layer_scores: Sequence[Tensor]) -> Tensor:
        """One pruning score a candidate, float32 [C], from the [G, C] of the aggregated layers."""


class PromptView(Protocol):
    """What a prompt shows before its main pass; everything is computed when first asked for."""

    @property
    def prompt_tokens(self) -> int:
        """L."""

    def last_query(self, layer: int) -> Observation:
        """One layer of a dense pass: the last token's query (W = 1) and all keys."""

    def log_probs(self) -> Tensor:
        """Log-probability of tokens 1..L-1 given those before each, float32 [L - 1]."""

    def draft_queries(self, steps: int) -> Sequence[Observation]:
        """Every draft layer: queries of the last prompt token and of `steps` - 1 greedy tokens."""


@runtime_checkable
class PromptRanker(Protocol):
    """Scores prompt tokens before the main pass, which runs on the chosen ones alone."""

    @property
    def name(self) -> str:
        """The name it is registered under."""

    @property
    def compact(self) -> bool:
        """Whether the chosen tokens are numbered anew, 0..K-1, or keep their positions."""

    def settled(self, num_layers: int) -> PruningParams:
        """The parameters as this method means them in a model of `num_layers` layers."""

    def kept_count(self, prompt_tokens: int) -> int:
        """Tokens to keep of a prompt, in [1, prompt_tokens]."""

    def dense_layers(self, num_layers: int) -> int:
        """Layers that must run on the whole prompt before `score_prompt` can answer."""

    def score_prompt(self, view: PromptView) -> Tensor:
        """One score a candidate, float32 [C]; tokens C..L-1 are kept whatever they score."""


def ranks_before(ranker: Ranker | PromptRanker) -> TypeGuard[PromptRanker]:
    """Whether a method looks at the prompt before the main pass.

    The same as `isinstance`, which compares every member of the protocol: several times a prompt,
    while a device waits for its first layer.
    """
    return hasattr(ranker, "score_prompt")
