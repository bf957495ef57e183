"""What a page policy is.

Shapes: P pages of one row's KV in one layout.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from shared.kv.geometry import PAGE_SIZE, pages_for


class LayerRole(Enum):
    """What a decoder layer does at a decode step."""

    FULL = "full"
    """Reads every slot and plans nothing."""
    DELTA = "delta"
    """Reads every slot and chooses the pages of the sparse layers that follow."""
    SPARSE = "sparse"
    """Reads the pages that the last Δ-layer chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSelection:
    """Pages that a sparse layer reads, in the logical order of one layout."""

    pages: torch.Tensor
    """Logical page numbers, int64, strictly ascending; the last one is the row's last page."""
    visible: int
    """KV slots to read once the pages are laid end to end; the last page may be partial."""


class PagePolicy(Protocol):
    """What one request's layers read. Holds no state between steps, so rows may share one."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def roles(self) -> tuple[LayerRole, ...]:
        """Role of every layer. Every sparse layer has a Δ-layer somewhere before it."""

    def num_selected(self, num_pages: int) -> int:
        """Pages a sparse layer reads of `num_pages`.

        Depends on the length alone, so that planning never waits for a score.
        """

    def select(self, scores_P: torch.Tensor) -> torch.Tensor:
        """Chooses pages by score.

        Returns:
            num_selected(P) logical page numbers, int64, strictly ascending.
        """


def visible_slots(kv_length: int, num_selected: int) -> int:
    """Slots in `num_selected` pages of a row of `kv_length` slots, its last page among them."""
    last_page = kv_length - (pages_for(kv_length) - 1) * PAGE_SIZE
    return (num_selected - 1) * PAGE_SIZE + last_page


def make_selection(policy: PagePolicy, scores_P: torch.Tensor, *, kv_length: int) -> PageSelection:
    """Runs a policy over the page scores of a row that holds `kv_length` slots."""
    assert scores_P.shape[0] == pages_for(kv_length), "one score per page"
    pages = policy.select(scores_P)
    return PageSelection(pages=pages, visible=visible_slots(kv_length, pages.shape[0]))
