"""How much of full attention lies in the slots that a layer reads.

Shapes: H query heads, G KV heads, D head size, T slots of a row, U units of a selection.
"""

import torch

from decode_service.sparsity.base import Selection
from shared.kv.geometry import PAGE_SIZE, pages_for


def full_probs(q_HD: torch.Tensor, k_TGD: torch.Tensor) -> torch.Tensor:
    """Probabilities of full attention over all slots, float32 [H, T].

    Args:
        q_HD: rotated query.
        k_TGD: rotated keys, any strides.
    """
    num_kv_heads, head_dim = k_TGD.shape[1], k_TGD.shape[2]
    q_GQD = (q_HD.float() * head_dim**-0.5).view(num_kv_heads, -1, head_dim)
    logits_GQT = torch.bmm(q_GQD, k_TGD.float().permute(1, 2, 0))
    return torch.softmax(logits_GQT, dim=-1).flatten(0, 1)


def mass_inside(probs_HT: torch.Tensor, selection: Selection | None) -> torch.Tensor:
    """Share of each query head's attention mass in the slots that it reads, float32 [H].

    Args:
        probs_HT: probabilities over all slots.
        selection: what is read; None: everything.
    """
    if selection is None:
        return probs_HT.sum(dim=-1)
    num_heads = probs_HT.shape[0]
    rows = selection.units_RU.shape[0]
    # Query heads h * H/R .. read row h: of KV head h, or of query head h.
    units_HU = selection.units_RU.repeat_interleave(num_heads // rows, dim=0)
    return _unit_masses(probs_HT, unit=selection.unit).gather(1, units_HU).sum(dim=-1)


def mean_mass(q_HD: torch.Tensor, k_TGD: torch.Tensor, selection: Selection | None) -> torch.Tensor:
    """Mean over the query heads of `mass_inside`, a scalar on the query's device."""
    return mass_inside(full_probs(q_HD, k_TGD), selection).mean()


def _unit_masses(probs_HT: torch.Tensor, *, unit: int) -> torch.Tensor:
    """Mass in each page or slot."""
    if unit == 1:
        return probs_HT
    num_heads, slots = probs_HT.shape
    pages = pages_for(slots)
    padded = probs_HT.new_zeros(num_heads, pages * PAGE_SIZE)
    padded[:, :slots] = probs_HT
    return padded.view(num_heads, pages, PAGE_SIZE).sum(dim=-1)
