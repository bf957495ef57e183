"""The mass that window rows give each key, every probability materialised; beside its tests."""

import math

import torch
from torch import Tensor


def slow_logits(q_WHD: Tensor, k_LGD: Tensor) -> Tensor:
    """Scaled logits, -inf where a row does not see a key, float64 [H, W, L]."""
    window, heads, head_dim = q_WHD.shape
    length, groups, _ = k_LGD.shape
    k_LHD = k_LGD.double().repeat_interleave(heads // groups, dim=1)
    logits = torch.einsum("whd,lhd->hwl", q_WHD.double(), k_LHD) / math.sqrt(head_dim)
    for w in range(window):
        logits[:, w, length - window + w + 1 :] = -math.inf
    return logits


def slow_window_mass(q_WHD: Tensor, k_LGD: Tensor) -> Tensor:
    """Probabilities summed over the rows and heads of each KV head, float64 [G, C]."""
    candidates, groups = k_LGD.shape[0] - q_WHD.shape[0], k_LGD.shape[1]
    probs = slow_logits(q_WHD, k_LGD).softmax(-1).sum(1)[:, :candidates]
    return probs.reshape(groups, -1, candidates).sum(1)
