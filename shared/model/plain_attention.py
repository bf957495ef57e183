"""Causal attention in float32 with every logit in memory: what exact kernels are compared with.

Shapes: P tokens of a prompt (padding included), T queries, S keys, H query heads, G KV heads, D
head size.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def plain_attention(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> tuple[Tensor, Tensor]:
    """Output [T, H, D] and natural log-sum-exp of the scaled logits [T, H], both float32.

    Queries are the last T of S positions: query t sees keys 0..S-T+t.
    """
    tokens, heads, head_dim = q_THD.shape
    keys = k_SGD.shape[0]
    group = heads // k_SGD.shape[1]
    k_HSD, v_HSD = (
        x.float().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k_SGD, v_SGD)
    )
    logits_HTS = q_THD.float().transpose(0, 1) @ k_HSD.transpose(1, 2) * head_dim**-0.5
    future_TS = torch.ones(tokens, keys, dtype=torch.bool, device=q_THD.device)
    logits_HTS = logits_HTS.masked_fill(future_TS.triu(1 + keys - tokens), -math.inf)
    out_HTD = logits_HTS.softmax(-1) @ v_HSD
    return out_HTD.transpose(0, 1), logits_HTS.logsumexp(-1).t()


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """An exact kernel for any device and type, slow: runs the CUDA path where there is no GPU."""

    step: int = 16
    """Prompts are padded to a multiple of this many tokens, as some fast kernels want it."""

    @property
    def name(self) -> str:
        """`plain`."""
        return "plain"

    @property
    def missing(self) -> str | None:
        """Never."""
        return None

    def padded(self, tokens: int) -> int:
        """The next multiple."""
        return -(-tokens // self.step) * self.step

    def attend(
        self, q_PHD: Tensor, k_PGD: Tensor, v_PGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        out_PHD, lse_PH = plain_attention(q_PHD, k_PGD, v_PGD)
        return out_PHD.to(q_PHD.dtype), lse_PH if want_lse else None
