"""Page scores and the choice by score: maths common to the policies.

Shapes: H query heads, G KV heads, R query heads of one KV head or rows of scores, D head size,
T slots, P pages.
"""

import torch
from torch.nn import functional

from shared.kv.geometry import PAGE_SIZE


def full_probs(q_HD: torch.Tensor, k_TGD: torch.Tensor) -> torch.Tensor:
    """Probabilities of full attention over all slots, float32 [H, T].

    Args:
        q_HD: rotated query.
        k_TGD: rotated keys, any strides.
    """
    num_kv_heads, head_dim = k_TGD.shape[1:]
    q_GRD = (q_HD.float() * head_dim**-0.5).view(num_kv_heads, -1, head_dim)
    logits_GRT = torch.bmm(q_GRD, k_TGD.float().permute(1, 2, 0))
    return torch.softmax(logits_GRT, dim=-1).flatten(0, 1)


def token_scores(probs_GRT: torch.Tensor) -> torch.Tensor:
    """Score of every slot in every KV head, [G, T]: the largest probability of its query heads."""
    return probs_GRT.amax(dim=1)


def page_sums(scores_RT: torch.Tensor) -> torch.Tensor:
    """Sum over the slots of each page, [R, P]; a partial last page sums fewer terms."""
    missing = -scores_RT.shape[-1] % PAGE_SIZE
    padded = functional.pad(scores_RT, (0, missing)) if missing else scores_RT
    return padded.reshape(*padded.shape[:-1], -1, PAGE_SIZE).sum(dim=-1)


def top_pages(scores_RP: torch.Tensor, *, budget: int, recency: int) -> torch.Tensor:
    """Page 0, the last `recency` pages and the best of the others, `budget` in all.

    Ties go to the lower page, a score that is not a number never wins. At most `budget` pages are
    all kept.

    Args:
        scores_RP: page scores; a single row may come without its row dimension.
        budget: pages to keep in each row.
        recency: last pages that are forced, as page 0 is.

    Returns:
        min(P, budget) logical page numbers for each row, int64, strictly ascending.
    """
    num_pages = scores_RP.shape[-1]
    if num_pages <= budget:
        return torch.arange(num_pages, device=scores_RP.device).expand(scores_RP.shape)
    order_RP = _ranking(scores_RP, recency=recency)
    return order_RP[..., :budget].sort(dim=-1).values


def best_units(scores_RU: torch.Tensor, *, count: int) -> torch.Tensor:
    """The `count` best units of each row, [R, count] int64, ascending; nothing is forced.

    Ties go to the lower unit, a score that is not a number never wins.
    """
    ranked_RU = torch.nan_to_num(scores_RU, nan=-torch.inf)
    order_RU = torch.argsort(ranked_RU, dim=-1, descending=True, stable=True)
    return order_RU[..., :count].sort(dim=-1).values


def pages_for_mass(scores_RP: torch.Tensor, *, mass: float, recency: int) -> int:
    """The fewest pages with which `top_pages` holds a share of the scores in every row.

    Args:
        scores_RP: page scores of more pages than are forced.
        mass: the share, in (0, 1].
        recency: last pages that are forced, as page 0 is.

    Returns:
        At least recency + 1 and at most P.
    """
    order_RP = _ranking(scores_RP, recency=recency)
    ranked_RP = torch.nan_to_num(scores_RP, nan=0.0).double().gather(-1, order_RP)
    held_RP = ranked_RP.cumsum(dim=-1)
    short_R = (held_RP < mass * held_RP[..., -1:]).sum(dim=-1)
    return max(recency, int(short_R.max())) + 1


def _ranking(scores_RP: torch.Tensor, *, recency: int) -> torch.Tensor:
    """Pages from the best to the worst, forced ones first, [R, P]."""
    ranked_RP = torch.nan_to_num(scores_RP, nan=-torch.inf)
    ranked_RP[..., 0] = torch.inf
    ranked_RP[..., ranked_RP.shape[-1] - recency :] = torch.inf
    return torch.argsort(ranked_RP, dim=-1, descending=True, stable=True)
