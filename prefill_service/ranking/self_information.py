"""Self-information: keep the tokens that the model itself did not expect.

Perplexity filtering in the manner of Selective Context and LLMLingua: a token scores by minus the
log-probability that the model gives it after all tokens before it. The window, where the question
stands, is always kept. The rest is read as a shorter text, numbered 0..K-1. Where those tools drop
phrases or sentences, single tokens are dropped here. It knows nothing of the question.

Shapes: L prompt tokens, C candidates.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional

from prefill_service.ranking.base import PromptView
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class SelfInformationRanker:
    """Surprise of the main model."""

    params: PruningParams
    """Window and budget."""

    @property
    def name(self) -> str:
        """`self-information`."""
        return "self-information"

    @property
    def compact(self) -> bool:
        """The filtered text is a text of its own."""
        return True

    def settled(self, num_layers: int) -> PruningParams:
        """Every layer holds the chosen tokens."""
        del num_layers
        return replace(
            self.params,
            aggregation_window=1,
            deferred_layers=0,
            kv_select=KvSelect.SHARED,
            kv_rate=None,
        )

    def kept_count(self, prompt_tokens: int) -> int:
        """min(L, max(floor(r L), W + 1, min_keep))."""
        return self.params.kept_count(prompt_tokens)

    def dense_layers(self, num_layers: int) -> int:
        """All of them: the scorer is the model."""
        return num_layers

    def score_prompt(self, view: PromptView) -> Tensor:
        """Self-information of the tokens before the window, float32 [C]; token 0 scores 0."""
        surprise_L = functional.pad(-view.log_probs(), (1, 0))
        return surprise_L[: max(0, view.prompt_tokens - self.params.observation_window)]
