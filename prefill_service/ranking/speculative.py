"""Speculative prefill: a small draft model's attention chooses what the main model reads.

The draft reads the prompt and writes a few tokens. A token scores by the probability that the last
prompt token and those written tokens give it: softmax over the prompt, pooled, the maximum over
layers and heads, the mean over steps. The main model runs once, on the chosen tokens at their own
positions. `speculative` scores chunks of 32 tokens by their mean and forces nothing, as the
authors' code does; `speculative-forced` also keeps the window; `speculative-tokens` keeps the
window and chooses single tokens. Where the authors keep whole chunks, the last chosen one is cut
here, so that every method keeps the same count.

Shapes: J steps, H query heads, G KV heads, R query heads of a KV head, D head size, L prompt
tokens, C candidates.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from prefill_service.ranking.base import Observation, PromptView
from shared.types.methods import KvSelect, PruningParams

CHUNK_TOKENS = 32
"""Tokens that are kept or dropped together."""
LOOK_AHEAD = 8
"""Steps of the draft: the last prompt token and the tokens after it."""


@dataclass(frozen=True, slots=True)
class SpeculativeRanker:
    """Attention of a draft model's first answer tokens."""

    params: PruningParams
    """Window, pool and budget."""
    name: str = "speculative"
    """The name it is registered under."""
    forced: bool = False
    """Whether the window is always kept."""
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens that share a score."""

    @property
    def compact(self) -> bool:
        """Tokens keep their positions."""
        return False

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
        """min(L, max(floor(r L), W + 1, min_keep)): the budget of the methods compared."""
        return self.params.kept_count(prompt_tokens)

    def dense_layers(self, num_layers: int) -> int:
        """None: the main model is not asked."""
        del num_layers
        return 0

    def score_prompt(self, view: PromptView) -> Tensor:
        """Importance of every candidate, float32 [C]: all tokens, or those before the window."""
        best_JL: Tensor | None = None
        for seen in view.draft_queries(LOOK_AHEAD):
            layer_JL = _strongest(seen, pool_kernel=self.params.pool_kernel)
            best_JL = layer_JL if best_JL is None else torch.maximum(best_JL, layer_JL)
        assert best_JL is not None, "a draft has layers"
        importance_L = _chunk_means(best_JL.mean(dim=0), self.chunk_tokens)
        window = self.params.observation_window if self.forced else 0
        return importance_L[: max(0, view.prompt_tokens - window)]


def _strongest(seen: Observation, *, pool_kernel: int) -> Tensor:
    """Pooled probabilities of one layer, the maximum over its heads, float32 [J, L]."""
    num_steps, _, head_dim = seen.q_WHD.shape
    num_groups = seen.k_LGD.shape[1]
    q_JGRD = seen.q_WHD.float().reshape(num_steps, num_groups, -1, head_dim)
    logits_JGRL = torch.einsum("jgrd,lgd->jgrl", q_JGRD, seen.k_LGD.float())
    probs_JHL = (logits_JGRL / math.sqrt(head_dim)).softmax(dim=-1).flatten(1, 2)
    pooled_JHL = functional.avg_pool1d(probs_JHL, pool_kernel, stride=1, padding=pool_kernel // 2)
    return pooled_JHL.amax(dim=1)


def _chunk_means(scores_L: Tensor, chunk_tokens: int) -> Tensor:
    """Every token with the mean of its chunk; the last chunk may be short."""
    num_tokens = scores_L.shape[0]
    spare = -num_tokens % chunk_tokens
    sums = functional.pad(scores_L, (0, spare)).view(-1, chunk_tokens).sum(dim=1)
    counts = torch.full_like(sums, chunk_tokens)
    counts[-1] -= spare
    return (sums / counts).repeat_interleave(chunk_tokens)[:num_tokens]
