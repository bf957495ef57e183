"""Page scores and the choice by score: maths common to the policies.

Shapes: G KV heads, R query heads of one KV head, T slots, P pages.
"""

import torch
from torch.nn import functional

from shared.kv.geometry import PAGE_SIZE


def token_scores(probs_GRT: torch.Tensor) -> torch.Tensor:
    """Score of every slot in every KV head, [G, T]: the largest probability of its query heads."""
    return probs_GRT.amax(dim=1)


def page_sums(scores_RT: torch.Tensor) -> torch.Tensor:
    """Sum over the slots of each page, [R, P]; a partial last page sums fewer terms."""
    missing = -scores_RT.shape[-1] % PAGE_SIZE
    padded = functional.pad(scores_RT, (0, missing)) if missing else scores_RT
    return padded.reshape(*padded.shape[:-1], -1, PAGE_SIZE).sum(dim=-1)


def top_pages(scores_P: torch.Tensor, *, budget: int, recency: int) -> torch.Tensor:
    """Page 0, the last `recency` pages and the best of the others, `budget` in all.

    Ties go to the lower page, a score that is not a number never wins. Rows of at most `budget`
    pages keep all.

    Returns:
        min(P, budget) logical page numbers, int64, strictly ascending.
    """
    num_pages = scores_P.shape[0]
    if num_pages <= budget:
        return torch.arange(num_pages, device=scores_P.device)
    ranked_P = torch.nan_to_num(scores_P, nan=-torch.inf)
    ranked_P[0] = torch.inf
    ranked_P[num_pages - recency :] = torch.inf
    order_P = torch.argsort(ranked_P, descending=True, stable=True)
    return order_P[:budget].sort().values
