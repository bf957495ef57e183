"""Rows of the policies that choose pages and remember nothing.

Every full layer reads everything, every other layer asks the policy for its pages at the moment it
reads, and no step leaves anything to the next.

Shapes: H query heads, D head size, U pages of a selection.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from decode_service.sparsity.base import (
    Evidence,
    LayerKv,
    LayerRole,
    Selection,
    page_selection,
)
from shared.errors import ConfigError
from shared.kv.geometry import pages_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A sparse layer that is about to read: all that a choice may depend on."""

    layer: int
    """Decoder layer."""
    generated: int
    """Tokens of the answer that have their KV after this step."""
    q_HD: torch.Tensor
    """The layer's rotated query."""
    kv: LayerKv
    """The layer's keys."""

    @property
    def num_pages(self) -> int:
        """Pages of the layer, the partial last one included."""
        return pages_for(self.kv.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessRow:
    """One row, or any number of them: nothing here changes."""

    roles: tuple[LayerRole, ...]
    """FULL or SPARSE, layer by layer."""
    budget: int
    """K: layers of at most that many pages are read whole."""
    choose: Callable[[Reading], torch.Tensor]
    """Pages that a layer reads, int64 [U], ascending, the last page at the end. Asked only where
    the layer holds more than `budget` pages, or where selecting is forced."""
    force: bool
    """Ask also where the budget covers every page."""

    def step(self, *, generated: int) -> "StatelessStep":
        """Begins a step; steps know nothing of each other."""
        return StatelessStep(self, generated=generated)


class StatelessStep:
    """One step.

    Args:
        row: roles, budget and choice.
        generated: tokens of the answer that have their KV after this step.
    """

    def __init__(self, row: StatelessRow, *, generated: int) -> None:
        self._row = row
        self._generated = generated

    def evidence(self, layer: int) -> Evidence:
        """Nothing: a choice is made from the layer's own query and keys, or from neither."""
        del layer
        return Evidence.NONE

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """The policy's pages; None for a full layer and for one within the budget."""
        row = self._row
        if row.roles[layer] is LayerRole.FULL:
            return None
        reading = Reading(layer=layer, generated=self._generated, q_HD=q_HD, kv=kv)
        if reading.num_pages <= row.budget and not row.force:
            return None
        return page_selection(row.choose(reading)[None], kv_length=kv.length)

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Never called, since no evidence is wanted."""
        raise AssertionError(
            f"layer {layer} was given evidence {tuple(evidence.shape)} that nobody asked for"
        )

    def commit(self) -> None:
        """Nothing to remember."""


def full_or_sparse(full_layers: tuple[int, ...], *, num_layers: int) -> tuple[LayerRole, ...]:
    """FULL for the layers of F, SPARSE for the others; nobody plans for anybody.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """
    if full_layers[-1] >= num_layers:
        raise ConfigError(
            f"full_layers names layer {full_layers[-1]} of a model of {num_layers} layers "
            f"(0..{num_layers - 1}): the profile belongs to another model; give layers of this one"
        )
    full = frozenset(full_layers)
    return tuple(
        LayerRole.FULL if layer in full else LayerRole.SPARSE for layer in range(num_layers)
    )
