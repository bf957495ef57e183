"""Quest: every layer chooses for itself, by what the bounds of a page's keys promise its query.

Paper: https://arxiv.org/abs/2406.10774. Layers 0 and 1 read everything. In every other layer the
last page is always read, and of the earlier ones those with the highest bound, K in all; nothing
else is forced and nothing is carried from layer to layer or from step to step but the bounds.
Deviation: the paper ranks for every query head, here the query heads of a KV head share a choice
(`quest`: the largest bound among them) or all heads do (`quest_shared`: the bounds of the mean
queries, summed over KV heads), since heads that share keys are read together.

Shapes: H query heads, G KV heads, D head size, R rows of a selection (G or 1), P full
pages.
"""

from dataclasses import dataclass

import torch

from decode_service.sparsity.base import (
    LayerKv,
    LayerRole,
    RowFacts,
    Selection,
    UnobservedStep,
    page_selection,
)
from decode_service.sparsity.page_bounds import PageBounds, logit_bounds
from decode_service.sparsity.page_scores import best_units
from shared.kv.geometry import pages_for
from shared.types.methods import PageHeads, SparsityParams

DENSE_LAYERS = 2
"""Layers 0 and 1 read everything, in the paper's evaluation and in its serving code."""


class QuestPolicy:
    """The K - 1 most promising pages and the last one, in every layer from the third on.

    Args:
        params: page budget K; no other field is read.
        num_layers: decoder layers of the model.
    """

    name = "quest"
    heads = PageHeads.KV_HEAD
    """Whether a choice is made once a KV head or once for all."""

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._budget = params.page_budget
        self._roles = tuple(
            LayerRole.FULL if layer < DENSE_LAYERS else LayerRole.SPARSE
            for layer in range(num_layers)
        )

    def begin(self, facts: RowFacts, *, force: bool = False) -> "QuestRow":
        """Takes up a row."""
        assert facts.num_layers == len(self._roles), "the policy was made for this model"
        return QuestRow(
            roles=self._roles,
            budget=self._budget,
            heads=self.heads,
            force=force,
            bounds=tuple(PageBounds() for _ in self._roles),
        )


class SharedQuestPolicy(QuestPolicy):
    """Quest with one choice for all heads."""

    name = "quest_shared"
    heads = PageHeads.SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestRow:
    """One row: the bounds of its pages, layer by layer."""

    roles: tuple[LayerRole, ...]
    """Role of every layer."""
    budget: int
    """K."""
    heads: PageHeads
    """For whom a choice is made."""
    force: bool
    """Select also where the budget covers every page."""
    bounds: tuple[PageBounds, ...]
    """A layer within the budget has none yet; they are made from its keys once it is beyond."""

    def step(self, *, generated: int) -> "QuestStep":
        """Begins a step."""
        del generated
        return QuestStep(self)


class QuestStep(UnobservedStep):
    """One step.

    Args:
        row: what it reads from and, on commit, adds to.
    """

    def __init__(self, row: QuestRow) -> None:
        self._row = row
        self._covered: dict[int, int] = {}

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """The last page and the most promising of the others."""
        row, num_pages = self._row, pages_for(kv.length)
        within = num_pages <= row.budget and not row.force
        if row.roles[layer] is LayerRole.FULL or within:
            return None
        # Every page but the last is full, and none holds the token that this step feeds.
        self._covered[layer] = num_pages - 1
        bounds_GPE = row.bounds[layer].cover(kv, num_pages=num_pages - 1)
        scores_RP = promises(q_HD, bounds_GPE, heads=row.heads)
        earlier_RU = best_units(scores_RP, count=min(num_pages, row.budget) - 1)
        last_RU = earlier_RU.new_full((earlier_RU.shape[0], 1), num_pages - 1)
        return page_selection(torch.cat((earlier_RU, last_RU), dim=1), kv_length=kv.length)

    def commit(self) -> None:
        """Keeps the bounds of the pages that became full."""
        for layer, num_pages in self._covered.items():
            self._row.bounds[layer].keep(num_pages)


def promises(q_HD: torch.Tensor, bounds_GPE: torch.Tensor, *, heads: PageHeads) -> torch.Tensor:
    """What each page may hold for a query, [R, P]."""
    if heads is PageHeads.KV_HEAD:
        return logit_bounds(q_HD, bounds_GPE).amax(dim=1)
    mean_GD = q_HD.float().view(bounds_GPE.shape[0], -1, q_HD.shape[1]).mean(dim=1)
    return logit_bounds(mean_GD, bounds_GPE).sum(dim=0)
