"""Temporal reuse: a choice of pages serves several steps, while the recent pages move on.

Shapes: R rows of a selection, U pages chosen, T slots of the row in one layer.
"""

import torch

from decode_service.sparsity.base import (
    LayerKv,
    Selection,
    StepPolicy,
    UnobservedStep,
    page_selection,
)
from decode_service.sparsity.planner import ChoiceKey, PlannedRow, PlannedStep
from shared.kv.geometry import pages_for


class RefreshedRow:
    """A planning method whose choice is redone every r-th step.

    It is also redone once a layer outgrows the budget, since nothing is remembered for that layer.

    Args:
        row: what makes a choice, of pages: page 0, the last `recency` ones, and others.
        every: r.
        recency: last pages that are always read.
    """

    def __init__(self, row: PlannedRow, *, every: int, recency: int) -> None:
        self.roles = row.roles
        self.row = row
        self.recency = recency
        self.kept: dict[ChoiceKey, torch.Tensor] = {}
        self._every = every
        self._made_at = 0

    def step(self, *, generated: int) -> StepPolicy:
        """See `RowPolicy.step`."""
        keys = {self.row.keys[layer] for layer in self.row.selected_layers(generated=generated)}
        wanted = {key for key in keys if self._outgrown(key, generated=generated)}
        is_due = generated - self._made_at >= self._every
        if is_due or not wanted <= self.kept.keys():
            return ChoosingStep(self, generated=generated)
        return RecallingStep(self, generated=generated)

    def remember(self, choices: dict[ChoiceKey, Selection], *, generated: int) -> None:
        """Keeps the pages of a step that were neither first nor recent."""
        self._made_at = generated
        self.kept = {
            key: choice.units_RU[:, 1 : -self.recency]
            for key, choice in choices.items()
            if self._outgrown(key, generated=generated)
        }

    def length(self, key: ChoiceKey, *, generated: int) -> int:
        """Slots T of the layers that a choice serves."""
        return self.row.facts.layouts[key[1]].slots + generated

    def _outgrown(self, key: ChoiceKey, *, generated: int) -> bool:
        return not self.row.chooser.covers(self.length(key, generated=generated))


class ChoosingStep(PlannedStep):
    """A step that redoes the choice.

    Args:
        memory: takes the choice once the step has succeeded.
        generated: tokens of the answer that have their KV after this step.
    """

    def __init__(self, memory: RefreshedRow, *, generated: int) -> None:
        super().__init__(memory.row, generated=generated)
        self._memory = memory

    def commit(self) -> None:
        """Remembers the choice."""
        self._memory.remember(self.choices, generated=self._generated)


class RecallingStep(UnobservedStep):
    """A step that reads the pages of the last choice, and those that are recent now.

    Args:
        memory: what was chosen.
        generated: tokens of the answer that have their KV after this step.
    """

    def __init__(self, memory: RefreshedRow, *, generated: int) -> None:
        self._memory = memory
        self._generated = generated
        self._selected = memory.row.selected_layers(generated=generated)
        self._recalled: dict[ChoiceKey, Selection] = {}

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """See `StepPolicy.select`; the query and the keys play no part."""
        if layer not in self._selected:
            return None
        key = self._memory.row.keys[layer]
        if key not in self._recalled:
            pages_RU = self._pages(key, device=q_HD.device)
            self._recalled[key] = page_selection(pages_RU, kv_length=kv.length)
        return self._recalled[key]

    def commit(self) -> None:
        """The memory stands until the next choice."""

    def _pages(self, key: ChoiceKey, *, device: torch.device) -> torch.Tensor:
        num_pages = pages_for(self._memory.length(key, generated=self._generated))
        kept_RU = self._memory.kept.get(key)
        if kept_RU is None:  # the budget covers this layer, which reads a choice by force
            return torch.arange(num_pages, device=device)[None]
        rows, recency = kept_RU.shape[0], self._memory.recency
        first = kept_RU.new_zeros(rows, 1)
        recent = torch.arange(num_pages - recency, num_pages, device=device).expand(rows, -1)
        return torch.cat((first, kept_RU, recent), dim=1)
