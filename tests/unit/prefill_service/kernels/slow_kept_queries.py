"""Attention of queries at given positions, one query and head at a time; beside its tests."""

import math

import torch
from torch import Tensor


def slow_kept_queries(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, positions: list[int]) -> Tensor:
    """[T, H, D] in float64."""
    heads, head_dim = q_THD.shape[1:]
    out_THD = torch.zeros(q_THD.shape, dtype=torch.float64, device=q_THD.device)
    for t, position in enumerate(positions):
        for head in range(heads):
            group = head * k_SGD.shape[1] // heads
            k_SD = k_SGD[: position + 1, group].double()
            probs_S = (k_SD @ q_THD[t, head].double() / math.sqrt(head_dim)).softmax(0)
            out_THD[t, head] = probs_S @ v_SGD[: position + 1, group].double()
    return out_THD
