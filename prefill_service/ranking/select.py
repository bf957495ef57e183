"""From scores to kept positions: the same for every method, and pure.

Shapes: R rows (one, or one a KV head), G KV heads, C candidates, N kept tokens, L prompt tokens.
"""

import math

import torch
from torch import Tensor

from shared.types.methods import KvSelect


def select_positions(
    scores_RC: Tensor, *, prompt_tokens: int, kept_tokens: int, protect_first: bool
) -> Tensor:
    """Positions that each row keeps, ascending, int64 [R, N] with N = kept_tokens.

    The L - C tokens after the candidates (the window) are always kept and count. The rest of the
    budget goes to the highest scores, equal scores to the lower position first; a NaN score ranks
    last. With `protect_first`, token 0 takes the place of the lowest-ranked choice when it was not
    chosen itself.
    """
    num_rows, num_candidates = scores_RC.shape
    budget = kept_tokens - (prompt_tokens - num_candidates)
    if kept_tokens >= prompt_tokens:
        return torch.arange(prompt_tokens, device=scores_RC.device).expand(num_rows, -1)
    assert budget >= 1, "the window and one candidate must fit the kept count"
    ranked_RC = torch.nan_to_num(scores_RC, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    if protect_first:
        ranked_RC[:, 0] = math.inf
    chosen_RN = torch.sort(ranked_RC, dim=-1, descending=True, stable=True).indices[:, :budget]
    kept_RL = torch.zeros(
        (num_rows, prompt_tokens), dtype=torch.bool, device=scores_RC.device
    ).scatter_(1, chosen_RN, value=True)
    kept_RL[:, num_candidates:] = True
    return kept_RL.nonzero()[:, 1].view(num_rows, kept_tokens)


def cache_rows(scores_GC: Tensor, kv_select: KvSelect) -> Tensor:
    """Scores that choose one layer's own cache: [G, C] for `head`, their sum [1, C] for `layer`.

    `shared` has no choice of its own: its layers follow the pruning score.
    """
    assert kv_select is not KvSelect.SHARED, "shared caches follow the pruning score"
    if kv_select is KvSelect.HEAD:
        return scores_GC
    return scores_GC.sum(dim=0, keepdim=True)
