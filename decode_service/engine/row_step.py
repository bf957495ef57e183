"""What one row reads in each layer of one step.

Sizes follow from lengths alone and are known before the step; only the choice of pages waits for
the Δ-layers. Rows whose pages fit the budget read everything, along the same code path as dense.

Shapes: G KV heads, T slots, P pages.
"""

from dataclasses import dataclass

import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import LayerRole, PageSelection, make_selection
from decode_service.sparsity.score_board import ScoreBoard
from shared.kv.geometry import PAGE_SIZE, pages_for


@dataclass(frozen=True, slots=True)
class KvRead:
    """Slots that one layer reads, as places in its pool."""

    slots: int
    """KV slots read, the fed token's included."""
    first_slot: int | None
    """Where they begin when they lie in one run; None: go through the table."""
    table_P: torch.Tensor
    """Physical pages in reading order; the last one may be read in part."""
    logical_P: torch.Tensor | None
    """Logical pages; None when all are read."""


class RowStep:
    """Plans the reads of one row for one step.

    Args:
        row: the row, before the step.
        cache: where its pages are.
        force_sparse: take the sparse path even where every page fits the budget.
    """

    def __init__(self, row: Sequence, cache: PagedKvCache, *, force_sparse: bool) -> None:
        self.row = row
        self.attended = 0
        self._cache = cache
        self._layouts = row.prompt.layouts
        self._lengths = {group: row.kv_length(group) + 1 for group in LengthGroup}
        self._whole = {group: self._read_all(group) for group in LengthGroup}
        self._skips = {group: self._has_to_skip(group, force=force_sparse) for group in LengthGroup}
        self._chosen: dict[int, PageSelection] = {}
        self._tables: dict[tuple[int, LengthGroup], KvRead] = {}
        self._board: ScoreBoard | None = None

    def write_slot(self, group: LengthGroup) -> int:
        """Pool slot that takes the fed token's keys and values."""
        last = self._lengths[group] - 1
        page = self.row.prompt.pages.of(group).pages[last // PAGE_SIZE]
        return page * PAGE_SIZE + last % PAGE_SIZE

    def wants_scores(self, layer: int) -> bool:
        """Whether a layer must hand its token scores to `choose`."""
        return self.row.policy.roles[layer] is LayerRole.DELTA and any(self._skips.values())

    def read_of(self, layer: int) -> KvRead:
        """What a layer reads; for a sparse layer after its Δ-layer has chosen."""
        group = self._cache.group_of(layer)
        if self.row.policy.roles[layer] is not LayerRole.SPARSE or not self._skips[group]:
            return self._whole[group]
        key = (self.row.prompt.layer_layouts[layer], group)
        if key not in self._tables:
            self._tables[key] = self._read_chosen(*key)
        return self._tables[key]

    def choose(self, layer: int, scores_GT: torch.Tensor) -> None:
        """Takes the token scores of a Δ-layer and chooses pages in every layout that it serves."""
        board = self._board_of_step(scores_GT.device)
        layer_layouts = self.row.prompt.layer_layouts
        board.write(self._layouts[layer_layouts[layer]], scores_GT)
        self._tables.clear()
        self._chosen = {
            index: make_selection(
                self.row.policy,
                board.page_scores(self._layouts[index]),
                kv_length=self._layouts[index].slots + self.row.steps + 1,
            )
            for index in self.row.targets[layer]
        }

    def _board_of_step(self, device: torch.device) -> ScoreBoard:
        if self._board is None:
            self._board = ScoreBoard(
                prompt_tokens=self.row.prompt.prompt_tokens,
                num_positions=self.row.position + 1,
                device=device,
            )
        return self._board

    def _has_to_skip(self, group: LengthGroup, *, force: bool) -> bool:
        if not self.row.prompt.pages.of(group).pages:
            return False  # a group without layers
        num_pages = pages_for(self._lengths[group])
        return force or self.row.policy.num_selected(num_pages) < num_pages

    def _read_all(self, group: LengthGroup) -> KvRead:
        held = self.row.prompt.pages.of(group)
        length = self._lengths[group]
        num_pages = pages_for(length) if held.pages else 0
        assert num_pages <= len(held.pages), "a row reserves all its pages before it runs"
        return KvRead(
            slots=length,
            first_slot=None if held.start is None else held.start * PAGE_SIZE,
            table_P=held.table[:num_pages],
            logical_P=None,
        )

    def _read_chosen(self, layout: int, group: LengthGroup) -> KvRead:
        selection = self._chosen[layout]
        table_P = self.row.prompt.pages.of(group).table[selection.pages]
        return KvRead(
            slots=selection.visible,
            first_slot=None,
            table_P=table_P,
            logical_P=selection.pages,
        )
