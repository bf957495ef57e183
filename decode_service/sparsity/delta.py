"""DELTA: a few Δ-layers read everything and choose the pages that the layers after them read.

Paper: https://arxiv.org/abs/2510.09883. A Δ-layer's own output is full attention; it redoes its
choice at every step and replaces the previous one whole. Deviation: page 0 is always read, at the
cost of one page of the budget, because pruned prompts make a lost first token costly. Options that
the paper does not have are the README's.

Shapes: R rows of a selection (1, or a KV head each), S rows of slot scores, T slots, P pages.
"""

import torch

from decode_service.sparsity.base import (
    Evidence,
    RowFacts,
    RowPolicy,
    Selection,
    page_selection,
    require_layers,
)
from decode_service.sparsity.page_scores import page_sums, pages_for_mass, top_pages
from decode_service.sparsity.planner import PlannedRow, layer_roles
from decode_service.sparsity.refresh import RefreshedRow
from shared.kv.geometry import pages_for
from shared.types.methods import PageHeads, PageLayout, SparsityParams

_LEAST_BUCKET = 8
"""Smallest power of two that a count of pages is rounded up to."""


class DeltaPolicy:
    """Roles by the list of full layers F, pages by the scores of the last Δ-layer.

    Args:
        params: F, page budget K, recency pages L, options.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """

    name = "delta"
    evidence = Evidence.SCORES

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        require_layers(params.full_layers, num_layers=num_layers)
        self.params = params
        self._num_layers = num_layers

    def begin(self, facts: RowFacts, *, force: bool = False) -> RowPolicy:
        """See `PagePolicy.begin`."""
        assert facts.num_layers == self._num_layers, "the policy was built for this model"
        full_layers = self.params.full_layers
        if self.params.layout is PageLayout.SEGMENT:
            full_layers = tuple(sorted({*full_layers, *layout_changes(facts)}))
        roles = layer_roles(full_layers, num_layers=self._num_layers)
        row = PlannedRow(facts=facts, roles=roles, chooser=self, force=force)
        if self.params.refresh_every == 1:
            return row
        return RefreshedRow(row, every=self.params.refresh_every, recency=self.params.recency_pages)

    def board_rows(self, facts: RowFacts) -> int:
        """One for all heads, or one a KV head."""
        return 1 if self.params.heads is PageHeads.SHARED else facts.num_kv_heads

    def covers(self, length: int) -> bool:
        """P <= K."""
        return pages_for(length) <= self.params.page_budget

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """Page 0, the last L pages and the best of the rest by the sum over their slots.

        A choice for all heads of a layer whose KV heads hold different positions takes a page's
        largest sum among them.
        """
        sums_RP = page_sums(scores_ST)
        if self.params.heads is PageHeads.SHARED and sums_RP.shape[0] > 1:
            sums_RP = sums_RP.amax(dim=0, keepdim=True)
        pages_RU = top_pages(
            sums_RP, budget=self._budget(sums_RP), recency=self.params.recency_pages
        )
        return page_selection(pages_RU, kv_length=scores_ST.shape[1])

    def _budget(self, sums_RP: torch.Tensor) -> int:
        most, recency = self.params.page_budget, self.params.recency_pages
        if self.params.mass is None or sums_RP.shape[1] <= most:
            return most
        count = pages_for_mass(sums_RP, mass=self.params.mass, recency=recency)
        return min(most, page_bucket(count, least=recency + 2))


def page_bucket(count: int, *, least: int) -> int:
    """A count of pages rounded up, so that few sizes occur: `least`, 8, 16, 32 and so on."""
    if count <= least:
        return least
    return max(_LEAST_BUCKET, 1 << (count - 1).bit_length())


def layout_changes(facts: RowFacts) -> tuple[int, ...]:
    """Layers that hold other positions than the layer before them, whatever their layout's name."""
    return tuple(
        layer
        for layer in range(1, facts.num_layers)
        if not facts.layout_of(layer).same_positions(facts.layout_of(layer - 1))
    )
