"""The common part of the policies that choose pages and remember nothing.

Every full layer reads everything, every other layer asks the policy for its pages at the moment it
reads, and no step leaves anything to the next.

Shapes: H query heads, D head size, U pages of a selection.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from decode_service.sparsity.base import (
    LayerKv,
    LayerRole,
    RowFacts,
    Selection,
    UnobservedStep,
    page_selection,
    require_layers,
)
from shared.kv.geometry import pages_for
from shared.types.methods import SparsityParams


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


class StatelessPolicy(ABC):
    """A method that chooses a layer's pages when the layer reads; a member writes `pages`.

    Full layers are those of DELTA, so that the two differ in the choice alone.

    Args:
        params: F, page budget K and whatever the member looks at.
        num_layers: decoder layers of the model.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """

    name: str
    """Name in the registry."""

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self.params = params
        self._roles = self.layer_roles(num_layers)

    def begin(self, facts: RowFacts, *, force: bool = False) -> "StatelessRow":
        """See `PagePolicy.begin`; nothing is kept of the row."""
        assert facts.num_layers == len(self._roles), "the policy was made for this model"
        return StatelessRow(
            roles=self._roles, budget=self.params.page_budget, choose=self.pages, force=force
        )

    def layer_roles(self, num_layers: int) -> tuple[LayerRole, ...]:
        """FULL for the layers of F, SPARSE for the others; nobody plans for anybody.

        Raises:
            ConfigError: F names a layer that the model does not have.
        """
        require_layers(self.params.full_layers, num_layers=num_layers)
        full = frozenset(self.params.full_layers)
        return tuple(
            LayerRole.FULL if layer in full else LayerRole.SPARSE for layer in range(num_layers)
        )

    @abstractmethod
    def pages(self, reading: Reading) -> torch.Tensor:
        """Pages that a layer reads, int64 [U], ascending, the last page at the end.

        Asked only where the layer holds more than K pages, or where selecting is forced.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessRow:
    """One row, or any number of them: nothing here changes."""

    roles: tuple[LayerRole, ...]
    """FULL or SPARSE, layer by layer."""
    budget: int
    """K: layers of at most that many pages are read whole."""
    choose: Callable[[Reading], torch.Tensor]
    """See `StatelessPolicy.pages`."""
    force: bool
    """Ask also where the budget covers every page."""

    def step(self, *, generated: int) -> "StatelessStep":
        """Begins a step; steps know nothing of each other."""
        return StatelessStep(self, generated=generated)


class StatelessStep(UnobservedStep):
    """One step.

    Args:
        row: roles, budget and choice.
        generated: tokens of the answer that have their KV after this step.
    """

    def __init__(self, row: StatelessRow, *, generated: int) -> None:
        self._row = row
        self._generated = generated

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """The policy's pages; None for a full layer and for one within the budget."""
        row = self._row
        if row.roles[layer] is LayerRole.FULL:
            return None
        reading = Reading(layer=layer, generated=self._generated, q_HD=q_HD, kv=kv)
        if reading.num_pages <= row.budget and not row.force:
            return None
        return page_selection(row.choose(reading)[None], kv_length=kv.length)

    def commit(self) -> None:
        """Nothing to remember."""
