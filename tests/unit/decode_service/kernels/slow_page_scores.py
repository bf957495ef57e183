"""Page scores of a batch of paged rows by the definition, token by token; beside their tests."""

import torch
from torch import Tensor

from shared.kv.geometry import PAGE_SIZE, pages_for
from tests.support.kernel_rows import PagedRows
from tests.unit.decode_service.kernels.slow_attention import slow_probs


def slow_token_scores(rows: PagedRows, row: int) -> Tensor:
    """The largest probability of any query head for each token, float64 [T]."""
    probs = slow_probs(rows, row)
    return torch.stack([probs[:, t].max() for t in range(rows.lengths[row])])


def slow_page_sums(scores_T: Tensor) -> Tensor:
    """The sum over the tokens of each page, [U]."""
    pages = range(pages_for(len(scores_T)))
    return torch.stack([scores_T[u * PAGE_SIZE : (u + 1) * PAGE_SIZE].sum() for u in pages])
