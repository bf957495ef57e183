"""Attention of one decode row.

Shapes: H query heads, G heads of keys (KV heads, or query heads where each reads its own slots),
Q = H / G query heads of one head of keys, D head size, T slots read.
"""

from typing import NamedTuple, Protocol

import torch

from decode_service.sparsity.base import Evidence


class Attended(NamedTuple):
    """What a row's attention gives."""

    out_HD: torch.Tensor
    """Attention output, in the model's dtype."""
    evidence: torch.Tensor | None
    """On request, float32: scores [G, T] or probabilities [H, T]."""


class DecodeAttention(Protocol):
    """One query against the slots that a layer reads."""

    @property
    def name(self) -> str:
        """Name of the backend."""

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, evidence: Evidence
    ) -> Attended:
        """Softmax attention over all T slots, scale 1 / sqrt(D), normalised in float32.

        Args:
            q_HD: rotated query.
            k_TGD: rotated keys; any strides, read only.
            v_TGD: values.
            evidence: what to tell of the probabilities.
        """


class TorchDecodeAttention:
    """Plain torch: the query heads of a KV head are rows of one product, so keys are read once."""

    name = "torch"

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, evidence: Evidence
    ) -> Attended:
        """See `DecodeAttention.attend`; evidence is from float32 products whatever the dtype."""
        num_key_heads, head_dim = k_TGD.shape[1], k_TGD.shape[2]
        if evidence is not Evidence.NONE and k_TGD.dtype is not torch.float32:
            q_HD, k_TGD = q_HD.float(), k_TGD.float()
        q_GQD = (q_HD * head_dim**-0.5).view(num_key_heads, -1, head_dim)
        logits_GQT = torch.bmm(q_GQD, k_TGD.permute(1, 2, 0))
        probs_GQT = torch.softmax(logits_GQT, dim=-1, dtype=torch.float32)
        out_GQD = torch.bmm(probs_GQT.to(v_TGD.dtype), v_TGD.transpose(0, 1))
        return Attended(
            out_HD=out_GQD.view(-1, head_dim), evidence=_evidence_of(probs_GQT, evidence)
        )


def _evidence_of(probs_GQT: torch.Tensor, wanted: Evidence) -> torch.Tensor | None:
    if wanted is Evidence.NONE:
        return None
    return probs_GQT.amax(dim=1) if wanted is Evidence.SCORES else probs_GQT.flatten(0, 1)
