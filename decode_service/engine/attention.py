"""Attention of one decode row.

Shapes: H query heads, G heads of keys (KV heads, or query heads where each reads its own slots),
Q = H / G query heads of one head of keys, D head size, K = G * D, T slots read.
"""

from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from decode_service.sparsity.base import Evidence
from decode_service.sparsity.page_scores import token_scores


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
    """Plain torch: the query heads of a head of keys are rows of one product.

    On a CPU the time of a step is that of reading keys and values, and a product of one head at a
    time reads them in short strides. Few heads of keys that lie side by side are therefore read as
    they lie, by one product in which each query head meets zeros in the others' place.
    """

    name = "torch"

    def __init__(self) -> None:
        self._own_heads: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def attend(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, *, evidence: Evidence
    ) -> Attended:
        """See `DecodeAttention.attend`; evidence is from float32 products whatever the dtype."""
        if evidence is not Evidence.NONE and k_TGD.dtype is not torch.float32:
            q_HD, k_TGD = q_HD.float(), k_TGD.float()
        q_HD = q_HD * k_TGD.shape[2] ** -0.5
        attend = self._side_by_side if _lie_side_by_side(k_TGD, v_TGD) else _head_by_head
        out_HD, probs_GQT = attend(q_HD, k_TGD, v_TGD)
        return Attended(out_HD=out_HD, evidence=_evidence_of(probs_GQT, evidence))

    def _side_by_side(
        self, q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length, num_key_heads, head_dim = k_TGD.shape
        num_heads = q_HD.shape[0]
        own_HG = self._own(num_heads, num_key_heads, q_HD.dtype)
        q_HK = (q_HD[:, None, :] * own_HG[:, :, None]).flatten(1)
        logits_TH = functional.linear(k_TGD.view(length, -1), q_HK)
        probs_HT = torch.softmax(logits_TH.t().contiguous(), dim=-1, dtype=torch.float32)
        out_HK = _weighted(probs_HT.to(v_TGD.dtype), v_TGD.view(length, -1))
        out_GQGD = out_HK.view(num_key_heads, -1, num_key_heads, head_dim)
        out_GQD = out_GQGD.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        return out_GQD.reshape(num_heads, head_dim), probs_HT.view(num_key_heads, -1, length)

    def _own(self, num_heads: int, num_key_heads: int, dtype: torch.dtype) -> torch.Tensor:
        """1 where a query head belongs to a head of keys, [H, G]; on the CPU, as all keys here."""
        key = (num_heads, num_key_heads, dtype)
        if key not in self._own_heads:
            eye = torch.eye(num_key_heads, dtype=dtype)
            self._own_heads[key] = eye.repeat_interleave(num_heads // num_key_heads, dim=0)
        return self._own_heads[key]


def _weighted(probs_HT: torch.Tensor, v_TK: torch.Tensor) -> torch.Tensor:
    """Probs V, [H, K], a run of slots a thread: one product of few rows keeps to one thread."""
    runs = torch.get_num_threads()
    length = probs_HT.shape[1] // runs
    if runs == 1 or length == 0 or probs_HT.dtype is not torch.float32:
        return torch.mm(probs_HT, v_TK)
    cut = runs * length
    probs_RHT = probs_HT[:, :cut].view(-1, runs, length).transpose(0, 1)
    out_HK = torch.bmm(probs_RHT, v_TK[:cut].view(runs, length, -1)).sum(0)
    return out_HK if cut == v_TK.shape[0] else out_HK.addmm_(probs_HT[:, cut:], v_TK[cut:])


_MOST_SIDE_BY_SIDE = 4
"""Heads of keys up to which the products with zeros cost less than the strides."""


def _lie_side_by_side(k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> bool:
    return (
        k_TGD.device.type == "cpu"
        and k_TGD.shape[1] <= _MOST_SIDE_BY_SIDE
        and k_TGD.is_contiguous()
        and v_TGD.is_contiguous()
    )


def _head_by_head(
    q_HD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    num_key_heads, head_dim = k_TGD.shape[1], k_TGD.shape[2]
    q_GQD = q_HD.view(num_key_heads, -1, head_dim)
    logits_GQT = torch.bmm(q_GQD, k_TGD.permute(1, 2, 0))
    probs_GQT = torch.softmax(logits_GQT, dim=-1, dtype=torch.float32)
    out_GQD = torch.bmm(probs_GQT.to(v_TGD.dtype), v_TGD.transpose(0, 1))
    return out_GQD.view(-1, head_dim), probs_GQT


def _evidence_of(probs_GQT: torch.Tensor, wanted: Evidence) -> torch.Tensor | None:
    if wanted is Evidence.NONE:
        return None
    return token_scores(probs_GQT) if wanted is Evidence.SCORES else probs_GQT.flatten(0, 1)
