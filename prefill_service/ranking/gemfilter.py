"""GemFilter: one layer's attention of the last token chooses, then the prompt is read anew.

Raw logits of the last token's queries against every key, added over heads and pooled; no token is
forced, the last one included. The second pass runs on the chosen tokens, numbered 0..K-1 in the
authors' code (`gemfilter`) or at their own positions (`gemfilter-original`).

Shapes: H query heads, G KV heads, D head size, L prompt tokens.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from prefill_service.ranking.base import PromptView
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True)
class GemFilterRanker:
    """Raw last-token logits of the pruning layer."""

    params: PruningParams
    """Layer, pool and budget."""
    compact: bool = True
    """Whether the second pass numbers the chosen tokens anew."""

    @property
    def name(self) -> str:
        """`gemfilter` or `gemfilter-original`."""
        return "gemfilter" if self.compact else "gemfilter-original"

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
        """Those before the pruning layer, which itself gives keys and one query."""
        return min(self.params.pruning_layer, num_layers - 1)

    def score_prompt(self, view: PromptView) -> Tensor:
        """Pooled logits of every token, float32 [L]."""
        seen = view.last_query(self.params.pruning_layer)
        num_groups, head_dim = seen.k_LGD.shape[1:]
        q_GD = seen.q_WHD[-1].float().reshape(num_groups, -1, head_dim).sum(dim=1)
        logits_L = torch.einsum("gd,lgd->l", q_GD, seen.k_LGD.float())
        kernel = self.params.pool_kernel
        return functional.avg_pool1d(logits_L[None], kernel, stride=1, padding=kernel // 2)[0]
