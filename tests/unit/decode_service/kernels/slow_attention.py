"""Attention of a batch of paged rows, one head at a time in float64; beside its tests."""

import math

import torch
from torch import Tensor

from tests.support.kernel_rows import PagedRows


def slow_probs(rows: PagedRows, row: int) -> Tensor:
    """Probabilities of every query head over the row's tokens, float64 [H, T]."""
    keys, _ = rows.row_kv(row)
    heads, head_dim = rows.q_BHD.shape[1:]
    group = heads // keys.shape[1]
    logits = [
        keys[:, head // group].double() @ rows.q_BHD[row, head].double() / math.sqrt(head_dim)
        for head in range(heads)
    ]
    return torch.stack(logits).softmax(-1)


def slow_attention(rows: PagedRows) -> Tensor:
    """Output, float64 [B, H, D]; zeros for a row of no tokens."""
    heads = rows.q_BHD.shape[1]
    out = torch.zeros(rows.q_BHD.shape, dtype=torch.float64, device=rows.q_BHD.device)
    for row, length in enumerate(rows.lengths):
        if length == 0:
            continue
        probs, (_, values) = slow_probs(rows, row), rows.row_kv(row)
        for head in range(heads):
            out[row, head] = probs[head] @ values[:, head * values.shape[1] // heads].double()
    return out


def slow_lse(rows: PagedRows) -> Tensor:
    """Log-sum-exp of each head's logits to base 2, float64 [B, H]; -inf for no tokens."""
    heads, head_dim = rows.q_BHD.shape[1:]
    lse = torch.full(rows.q_BHD.shape[:2], -math.inf, dtype=torch.float64, device=rows.q_BHD.device)
    for row, length in enumerate(rows.lengths):
        keys, _ = rows.row_kv(row)
        for head in range(heads) if length else ():
            k_TD = keys[:, head * keys.shape[1] // heads].double()
            logits = k_TD @ rows.q_BHD[row, head].double() / math.sqrt(head_dim)
            lse[row, head] = torch.logsumexp(logits, 0) / math.log(2)
    return lse
