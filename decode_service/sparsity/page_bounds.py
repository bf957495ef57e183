"""Bounds of a page's keys, and how large they let a logit be: memory and maths common to policies.

The smallest and the largest key of a page, element by element, stand for the page: no slot of it
has a larger product with a query than the sum over the dimensions of the larger of the two products
(Quest, https://arxiv.org/abs/2406.10774). A prefill worker ships no bounds, so they are made from
the keys that arrived when they are first asked for, and for later pages from those pages alone.

Shapes: H query heads, G KV heads, R query heads of one KV head, D head size, E = 2 D, P pages,
T slots.
"""

import torch

from decode_service.sparsity.base import LayerKv
from shared.kv.geometry import PAGE_SIZE

_FIRST_ROOM = 64
"""Pages that there is room for at first; it doubles."""


class PageBounds:
    """Bounds of the pages of one layer of one row.

    What a step computes counts for that step only, until `keep` says that it may stay.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._room_GPE: torch.Tensor | None = None

    def cover(self, kv: LayerKv, *, num_pages: int) -> torch.Tensor:
        """Bounds of the first `num_pages` pages, [G, P, E] in the keys' dtype: largest, smallest.

        Reads the keys of the pages that were not kept, and no others. A view, valid until the next
        call.
        """
        if self._room_GPE is None or self._kept < num_pages:
            keys_TGD = kv.keys(first_page=self._kept)
            fresh_TGD = keys_TGD[: (num_pages - self._kept) * PAGE_SIZE]
            room_GPE = self._room_for(num_pages, keys_TGD)
            room_GPE[:, self._kept : num_pages] = page_bounds(fresh_TGD)
        else:
            room_GPE = self._room_GPE
        return room_GPE[:, :num_pages]

    def keep(self, num_pages: int) -> None:
        """Remembers the first `num_pages` pages: they are full and were covered in this step."""
        self._kept = max(self._kept, num_pages)

    def _room_for(self, num_pages: int, keys_TGD: torch.Tensor) -> torch.Tensor:
        room_GPE = self._room_GPE
        if room_GPE is None or room_GPE.shape[1] < num_pages:
            _, num_kv_heads, head_dim = keys_TGD.shape
            pages = max(_FIRST_ROOM, 2 * num_pages)
            wider_GPE = keys_TGD.new_empty(num_kv_heads, pages, 2 * head_dim)
            if room_GPE is not None:
                wider_GPE[:, : self._kept] = room_GPE[:, : self._kept]
            self._room_GPE = room_GPE = wider_GPE
        return room_GPE


def page_bounds(keys_TGD: torch.Tensor) -> torch.Tensor:
    """Largest and smallest key of each page, element by element, [G, P, E].

    A last page that is not full is bounded by the keys that it has.
    """
    whole = keys_TGD.shape[0] // PAGE_SIZE
    paged = keys_TGD[: whole * PAGE_SIZE].view(whole, PAGE_SIZE, *keys_TGD.shape[1:])
    low_PGD, high_PGD = torch.aminmax(paged, dim=1)
    bounds_PGE = torch.cat((high_PGD, low_PGD), dim=-1)
    tail_TGD = keys_TGD[whole * PAGE_SIZE :]
    if tail_TGD.shape[0]:
        low_GD, high_GD = torch.aminmax(tail_TGD, dim=0)
        bounds_PGE = torch.cat((bounds_PGE, torch.cat((high_GD, low_GD), dim=-1)[None]))
    return bounds_PGE.transpose(0, 1)


def logit_bounds(q_HD: torch.Tensor, bounds_GPE: torch.Tensor) -> torch.Tensor:
    """What no logit q·k / sqrt(D) of a page exceeds, for every query head, float32 [G, R, P].

    H may be any multiple of G: heads h*H/G.. belong to KV head h.
    """
    head_dim = q_HD.shape[1]
    q_GRD = (q_HD.float() * head_dim**-0.5).view(bounds_GPE.shape[0], -1, head_dim)
    # A positive element of the query is largest at the largest key, a negative one at the smallest.
    q_GRE = torch.cat((q_GRD.clamp(min=0.0), q_GRD.clamp(max=0.0)), dim=-1)
    return torch.bmm(q_GRE, bounds_GPE.float().transpose(1, 2))
