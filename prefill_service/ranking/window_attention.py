"""The attention that a prompt's last tokens pay to those before: base of the window methods.

Shapes: W window rows, H query heads, G KV heads, R = W * H / G query rows that share a KV head, D
head size, L prompt tokens, C = L - W candidates, B keys of one block.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from prefill_service.ranking.base import Observation

KEY_BLOCK = 4096
"""Keys looked at together: at most [G, R, KEY_BLOCK] logits exist, however long the prompt."""


def observed_scores(observation: Observation, *, pool_kernel: int) -> Tensor:
    """`window_scores` of an observation, by the Triton kernel where it asks for that.

    A window of more rows than the kernel holds takes the slow twin, whatever is asked for.
    """
    q_WHD, k_LGD = observation.q_WHD, observation.k_LGD
    if observation.by_kernel:
        from prefill_service.kernels.window_mass import (  # noqa: PLC0415  Triton is optional
            holds_window,
            window_mass_scores,
        )

        if holds_window(q_WHD, k_LGD):
            return window_mass_scores(
                q_WHD, k_LGD, pool_kernel=pool_kernel, lse_WH=observation.lse_WH
            )
    return window_scores(q_WHD, k_LGD, pool_kernel=pool_kernel)


def window_scores(
    q_WHD: Tensor, k_LGD: Tensor, *, pool_kernel: int, key_block: int = KEY_BLOCK
) -> Tensor:
    """Attention mass of each candidate per KV head, average-pooled over positions; float32 [G, C].

    Every probability is taken over all L keys; only then are the window's own columns dropped. The
    pool counts its zero padding in the divisor, so the first and last `pool_kernel // 2` candidates
    are damped. Pooling each query head and then adding heads equals adding first, which is what is
    done here.
    """
    num_window, num_candidates = q_WHD.shape[0], k_LGD.shape[0] - q_WHD.shape[0]
    num_groups = k_LGD.shape[1]
    mass_GC = torch.empty((num_groups, num_candidates), dtype=torch.float32, device=k_LGD.device)
    if num_candidates == 0:
        return mass_GC
    q_GRD = _grouped_queries(q_WHD, num_groups)
    lse_GR1 = _log_sum_exp(q_GRD, k_LGD, num_window=num_window, key_block=key_block)
    for start in range(0, num_candidates, key_block):
        end = min(start + key_block, num_candidates)
        logits_GRB = q_GRD @ _keys(k_LGD, start, end)
        mass_GC[:, start:end] = logits_GRB.sub_(lse_GR1).exp_().sum(dim=1)
    return pooled(mass_GC, pool_kernel)


def pooled(mass_GC: Tensor, pool_kernel: int) -> Tensor:
    """Average pool over positions, its zero padding counted; a kernel of 1 changes nothing."""
    return functional.avg_pool1d(mass_GC, pool_kernel, stride=1, padding=pool_kernel // 2)


def _grouped_queries(q_WHD: Tensor, num_groups: int) -> Tensor:
    """Scaled float32 queries by KV head, [G, R, D]; row r is window token r % W."""
    num_window, num_heads, head_dim = q_WHD.shape
    q_HWD = q_WHD.float().transpose(0, 1) * (1.0 / math.sqrt(head_dim))
    return q_HWD.reshape(num_groups, num_heads // num_groups * num_window, head_dim)


def _keys(k_LGD: Tensor, start: int, end: int) -> Tensor:
    """Float32 keys of one block, [G, D, B]."""
    return k_LGD[start:end].permute(1, 2, 0).float()


def _log_sum_exp(q_GRD: Tensor, k_LGD: Tensor, *, num_window: int, key_block: int) -> Tensor:
    """Logarithm of the softmax denominator of each query row over its causal keys, [G, R, 1]."""
    num_keys = k_LGD.shape[0]
    num_groups, num_rows, _ = q_GRD.shape
    lse_GR1 = q_GRD.new_full((num_groups, num_rows, 1), -math.inf)
    row_positions_R = torch.arange(num_rows, device=q_GRD.device) % num_window
    row_positions_R = row_positions_R + (num_keys - num_window)
    for start in range(0, num_keys, key_block):
        end = min(start + key_block, num_keys)
        logits_GRB = q_GRD @ _keys(k_LGD, start, end)
        if end > num_keys - num_window + 1:
            key_positions_B = torch.arange(start, end, device=q_GRD.device)
            future_RB = key_positions_B[None, :] > row_positions_R[:, None]
            logits_GRB = logits_GRB.masked_fill(future_RB, -math.inf)
        lse_GR1 = torch.logaddexp(lse_GR1, torch.logsumexp(logits_GRB, dim=-1, keepdim=True))
    return lse_GR1
