"""The common part of the policies whose Δ-layers choose for the layers after them.

A Δ-layer reads everything and writes what it saw on the score board; the first sparse layer of
each layout then turns the board into a choice, and the others up to the next Δ-layer share it. A
method adds what it wants to see and how scores become a selection.

Shapes: R rows of the board, S rows of slot scores (R, or G where one row meets KV heads that hold
different positions), T slots of the row in one layer.
"""

from typing import Protocol

import torch

from decode_service.sparsity.base import (
    Evidence,
    LayerKv,
    LayerRole,
    RowFacts,
    Selection,
)
from decode_service.sparsity.score_board import ScoreBoard


class Chooser(Protocol):
    """What a method adds. Keeps no state, so rows may share one."""

    @property
    def evidence(self) -> Evidence:
        """What a Δ-layer reports; its rows are written on the board as scores."""

    def board_rows(self, facts: RowFacts) -> int:
        """Rows R of the board: 1, G or H; the largest score of the heads of a row is kept."""

    def covers(self, length: int) -> bool:
        """Whether the budget covers a layer of `length` slots, so that nothing is to be chosen."""

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        """Chooses slots of a layer by their scores, which must be left alone.

        A layer that the budget covers comes here only under `force`; all its slots are chosen.
        """


ChoiceKey = tuple[int, int]
"""A choosing layer and the layout that is served."""


class PlannedRow:
    """A planning method at work on one row; nothing is remembered between steps.

    Args:
        facts: the row.
        roles: role of every layer; each sparse layer has a Δ-layer somewhere before it.
        chooser: the method.
        force: choose even where the budget covers every slot.
    """

    def __init__(
        self,
        *,
        facts: RowFacts,
        roles: tuple[LayerRole, ...],
        chooser: Chooser,
        force: bool = False,
    ) -> None:
        assert len(roles) == facts.num_layers, "one role a layer"
        self.facts = facts
        self.roles = roles
        self.chooser = chooser
        self.keys = _choice_keys(roles, facts.layer_layouts)
        self._force = force

    def step(self, *, generated: int) -> "PlannedStep":
        """See `RowPolicy.step`."""
        return PlannedStep(self, generated=generated)

    def selected_layers(self, *, generated: int) -> frozenset[int]:
        """Sparse layers that read less than everything at a step, or all of them by force."""
        if self._force:
            return frozenset(self.keys)
        covered = {
            layout: self.chooser.covers(self.facts.layouts[layout].slots + generated)
            for layout in {key[1] for key in self.keys.values()}
        }
        return frozenset(layer for layer, key in self.keys.items() if not covered[key[1]])


class PlannedStep:
    """One step of a planning method.

    Args:
        row: the row.
        generated: tokens of the answer that have their KV after this step.
    """

    def __init__(self, row: PlannedRow, *, generated: int) -> None:
        self.choices: dict[ChoiceKey, Selection] = {}
        self._row = row
        self._generated = generated
        self._selected = row.selected_layers(generated=generated)
        self._last_selected = max(self._selected, default=-1)
        self._board: ScoreBoard | None = None

    def evidence(self, layer: int) -> Evidence:
        """What the method wants of a Δ-layer, if any layer after it reads a choice."""
        # The board keeps what later Δ-layers do not hold, so a Δ-layer serves all layers after it.
        planning = self._row.roles[layer] is LayerRole.DELTA and layer < self._last_selected
        return self._row.chooser.evidence if planning else Evidence.NONE

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """See `StepPolicy.select`; the query and the keys play no part."""
        del q_HD, kv
        if layer not in self._selected:
            return None
        key = self._row.keys[layer]
        if key not in self.choices:
            assert self._board is not None, "a Δ-layer before this layer has reported"
            scores_ST = self._board.slot_scores(self._row.facts.layouts[key[1]])
            self.choices[key] = self._row.chooser.choose(scores_ST)
        return self.choices[key]

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Writes a Δ-layer's scores on the board."""
        facts = self._row.facts
        if self._board is None:
            self._board = ScoreBoard(
                rows=self._row.chooser.board_rows(facts),
                prompt_tokens=facts.prompt_tokens,
                num_positions=facts.prompt_tokens + self._generated,
                device=evidence.device,
            )
        self._board.write(facts.layout_of(layer), evidence)

    def commit(self) -> None:
        """Nothing is remembered."""


def layer_roles(full_layers: tuple[int, ...], *, num_layers: int) -> tuple[LayerRole, ...]:
    """Role of each layer; a full layer before a sparse one plans, so the last layer never does."""
    full = frozenset(full_layers)

    def role(layer: int) -> LayerRole:
        if layer not in full:
            return LayerRole.SPARSE
        plans = layer + 1 < num_layers and layer + 1 not in full
        return LayerRole.DELTA if plans else LayerRole.FULL

    return tuple(role(layer) for layer in range(num_layers))


def _choice_keys(
    roles: tuple[LayerRole, ...], layer_layouts: tuple[int, ...]
) -> dict[int, ChoiceKey]:
    """Whose choice each sparse layer reads, and in which layout."""
    keys: dict[int, ChoiceKey] = {}
    planner = -1
    for layer, role in enumerate(roles):
        if role is LayerRole.DELTA:
            planner = layer
        elif role is LayerRole.SPARSE:
            assert planner >= 0, "every sparse layer has a Δ-layer before it"
            keys[layer] = (planner, layer_layouts[layer])
    return keys
