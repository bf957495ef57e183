"""Oracle: every sparse layer ranks its pages by its own true attention.

Not a method: it reads every key to save reading keys. It is the bound on page selection with one
table for all heads: the score and the forced pages are DELTA's, and nothing is stale or carried
over, so what it loses against dense is lost to pages, to the shared table and to the budget, and
what DELTA loses beyond it is lost to reuse.

Shapes: H query heads, G KV heads, T slots, D head size, P pages.
"""

import torch

from decode_service.sparsity.page_scores import full_probs, page_sums, top_pages
from decode_service.sparsity.stateless import Reading, StatelessPolicy


class OracleTopkPolicy(StatelessPolicy):
    """Page 0, the last L pages and the truly best of the others, K in all."""

    name = "oracle_topk"

    def pages(self, reading: Reading) -> torch.Tensor:
        """The best pages by `true_page_scores`, [min(P, K)]."""
        scores_1P = true_page_scores(reading.q_HD, reading.kv.keys())[None]
        pages_1U = top_pages(
            scores_1P, budget=self.params.page_budget, recency=self.params.recency_pages
        )
        return pages_1U[0]


def true_page_scores(q_HD: torch.Tensor, k_TGD: torch.Tensor) -> torch.Tensor:
    """Sum over each page of the largest probability among all heads, float32 [P]."""
    return page_sums(full_probs(q_HD, k_TGD).amax(dim=0))
