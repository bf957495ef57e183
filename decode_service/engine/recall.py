"""How much of full attention lies in the slots that a layer reads.

Shapes: H query heads, G KV heads, D head size, T slots of a row, U units of a selection.
"""

import torch

from decode_service.sparsity.base import Selection
from decode_service.sparsity.page_scores import full_probs
from shared.kv.geometry import PAGE_SIZE, pages_for


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
