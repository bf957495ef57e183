"""From scores to kept positions: the same for every method, and pure.

Shapes: R rows (one, or one a KV head), G KV heads, C candidates, N kept tokens, L prompt tokens, P
protected positions.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.types.methods import KvSelect, PruningParams


def select_positions(
    scores_RC: Tensor,
    *,
    prompt_tokens: int,
    kept_tokens: int,
    protect_first: bool,
    protected_P: Tensor | None = None,
) -> Tensor:
    """Positions that each row keeps, ascending, int64 [R, N] with N = kept_tokens.

    The L - C tokens after the candidates (the window) are always kept and count. The rest of the
    budget goes to the highest scores, equal scores to the lower position first; a NaN score ranks
    last. Token 0 with `protect_first`, and the positions in `protected_P`, take the places of the
    lowest-ranked choices when they were not chosen themselves.
    """
    num_rows, num_candidates = scores_RC.shape
    budget = kept_tokens - (prompt_tokens - num_candidates)
    if kept_tokens >= prompt_tokens:
        return torch.arange(prompt_tokens, device=scores_RC.device).expand(num_rows, -1)
    assert budget >= 1, "the window and one candidate must fit the kept count"
    ranked_RC = _rankable(scores_RC)
    if protect_first:
        ranked_RC[:, 0] = math.inf
    if protected_P is not None:
        inside_P = protected_P[protected_P < num_candidates]
        assert len(inside_P) <= budget, "the protected positions must fit the kept count"
        ranked_RC[:, inside_P] = math.inf
    chosen_RN = torch.sort(ranked_RC, dim=-1, descending=True, stable=True).indices[:, :budget]
    kept_RL = torch.zeros(
        (num_rows, prompt_tokens), dtype=torch.bool, device=scores_RC.device
    ).scatter_(1, chosen_RN, value=True)
    kept_RL[:, num_candidates:] = True
    return kept_RL.nonzero()[:, 1].view(num_rows, kept_tokens)


def kept_by_mass(
    params: PruningParams,
    *,
    scores_C: Tensor,
    layer_scores: Sequence[Tensor],
    prompt_tokens: int,
    protected_P: Tensor | None = None,
    earlier_tokens: int = 0,
) -> int:
    """Tokens to keep so that the chosen ones hold `params.mass` of what all could have held.

    The window and the protected tokens are kept anyway: their mass counts for nothing, so that
    token 0, which draws much of it, does not set the count. The bounds of `params` hold, for all
    but the last `earlier_tokens`, which are protected and none of the prompt's.
    """
    assert params.mass is not None, "a keep rate sets the count"
    free_C = torch.ones_like(scores_C, dtype=torch.bool)
    free_C[: params.protect_first] = False
    if protected_P is not None:
        free_C[protected_P] = False
    mass_C = attention_mass(layer_scores)
    chosen = count_by_mass(scores_C[free_C], mass_C[free_C], share=params.mass)
    wanted = prompt_tokens - int(free_C.sum()) + chosen
    own_tokens = prompt_tokens - earlier_tokens
    least, most = params.least_count(own_tokens), params.kept_count(own_tokens)
    return min(max(wanted, least + earlier_tokens), most + earlier_tokens)


def attention_mass(layer_scores: Sequence[Tensor]) -> Tensor:
    """Share of the attention that each candidate draws, float32 [C]: every layer counts the same.

    Takes the [G, C] scores of the aggregated layers; a negative score and a NaN draw nothing.
    """
    shares_nC = torch.stack(
        [scores_GC.nan_to_num(nan=0.0).clamp(min=0).sum(dim=0) for scores_GC in layer_scores]
    )
    totals_n1 = shares_nC.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(shares_nC.dtype).tiny)
    return (shares_nC / totals_n1).mean(dim=0)


def count_by_mass(scores_C: Tensor, mass_C: Tensor, *, share: float) -> int:
    """How many of the highest scores together hold `share` of the mass, in 1..C (0 without any)."""
    if scores_C.shape[0] == 0:
        return 0
    order_C = torch.sort(_rankable(scores_C), descending=True, stable=True).indices
    held_C = mass_C[order_C].double().cumsum(dim=0)
    return min(int((held_C < share * held_C[-1]).sum()) + 1, scores_C.shape[0])


def _rankable(scores_xC: Tensor) -> Tensor:
    """A copy where NaN ranks last and nothing is infinite: that is for protected tokens."""
    highest = torch.finfo(scores_xC.dtype).max
    return torch.nan_to_num(scores_xC, nan=-math.inf, posinf=highest, neginf=-math.inf)


def cache_rows(scores_GC: Tensor, kv_select: KvSelect) -> Tensor:
    """Scores that choose one layer's own cache: [G, C] for `head`, their sum [1, C] for `layer`.

    `shared` has no choice of its own: its layers follow the pruning score.
    """
    assert kv_select is not KvSelect.SHARED, "shared caches follow the pruning score"
    if kv_select is KvSelect.HEAD:
        return scores_GC
    return scores_GC.sum(dim=0, keepdim=True)
