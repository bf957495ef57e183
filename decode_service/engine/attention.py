"""Attention of one decode row.

Shapes: H query heads, G KV heads, R = H / G query heads of one KV head, D head size, T slots read.
"""

from typing import NamedTuple, Protocol

import torch

from decode_service.sparsity.page_scores import token_scores


class Attended(NamedTuple):
    """What a row's attention gives."""

    out_HD: torch.Tensor
    """Attention output, in the model's dtype."""
    scores_GT: torch.Tensor | None
    """On request: each slot's largest probability among a KV head's query heads, float32."""


class DecodeAttention(Protocol):
    """One query against the slots that a layer reads."""

    @property
    def name(self) -> str:
        """Name of the backend."""

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, scored: bool
    ) -> Attended:
        """Softmax attention over all T slots, scale 1 / sqrt(D), normalised in float32.

        Args:
            q_HD: rotated query.
            k_TGD: rotated keys; any strides, read only.
            v_TGD: values.
            scored: whether to return token scores.
        """


class TorchDecodeAttention:
    """Plain torch: the query heads of a KV head are rows of one product, so keys are read once."""

    name = "torch"

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, scored: bool
    ) -> Attended:
        """See `DecodeAttention.attend`; scores come from float32 products whatever the dtype."""
        num_kv_heads, head_dim = k_TGD.shape[1], k_TGD.shape[2]
        if scored and k_TGD.dtype is not torch.float32:
            q_HD, k_TGD = q_HD.float(), k_TGD.float()
        q_GRD = (q_HD * head_dim**-0.5).view(num_kv_heads, -1, head_dim)
        logits_GRT = torch.bmm(q_GRD, k_TGD.permute(1, 2, 0))
        probs_GRT = torch.softmax(logits_GRT, dim=-1, dtype=torch.float32)
        out_GRD = torch.bmm(probs_GRT.to(v_TGD.dtype), v_TGD.transpose(0, 1))
        return Attended(
            out_HD=out_GRD.view(-1, head_dim),
            scores_GT=token_scores(probs_GRT) if scored else None,
        )
