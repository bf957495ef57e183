"""Keeps which pages a row's layers read, in evenly spread steps of a long generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from decode_service.engine.runner import LayerRead
from decode_service.engine.sequence import Sequence as Row
from decode_service.sparsity.base import LayerRole, Selection
from shared.kv.geometry import PAGE_SIZE, pages_for


@dataclass(slots=True, kw_only=True)
class LayerStrip:
    """One layer's pages; the lists have one entry a step that was kept."""

    layer: int
    planner: int | None
    """The Δ-layer that chooses for it; None if it chooses for itself."""
    steps: list[int] = field(default_factory=list)
    num_pages: list[int] = field(default_factory=list)
    pages: list[list[int]] = field(default_factory=list)
    refreshed: list[bool] = field(default_factory=list)


class StripRecorder:
    """A step observer of one row.

    Args:
        row: the row to watch.
        layers: layers whose pages are kept; empty: `telling_layers`.
    """

    def __init__(self, row: Row, *, layers: Sequence[int]) -> None:
        roles = row.row_policy.roles
        wanted = layers or telling_layers(roles)
        self._row = row
        self._planned = [False] * len(roles)
        self._step = 0
        self.strips = {
            layer: LayerStrip(layer=layer, planner=planner_of(roles, layer)) for layer in wanted
        }

    def at(self, step: int) -> "StripRecorder":
        """Turns to a step."""
        self._step = step
        return self

    def layer_read(self, seen: LayerRead) -> None:
        """Keeps one layer's pages."""
        if seen.row is not self._row:
            return
        self._planned[seen.layer] = seen.planned
        strip = self.strips.get(seen.layer)
        if strip is None:
            return
        num_pages = pages_for(seen.kv.length)
        strip.steps.append(self._step)
        strip.num_pages.append(num_pages)
        strip.pages.append(_pages(seen.read.selection, num_pages=num_pages))
        strip.refreshed.append(strip.planner is None or self._planned[strip.planner])


def telling_layers(roles: Sequence[LayerRole]) -> list[int]:
    """The sparse layers that follow a full one, and the last sparse layer."""
    sparse = [layer for layer, role in enumerate(roles) if role is LayerRole.SPARSE]
    first = [layer for layer in sparse if layer == 0 or roles[layer - 1] is not LayerRole.SPARSE]
    return sorted({*first, *sparse[-1:]})


def planner_of(roles: Sequence[LayerRole], layer: int) -> int | None:
    """The last Δ-layer before a layer."""
    before = [index for index in range(layer) if roles[index] is LayerRole.DELTA]
    return before[-1] if before else None


def _pages(selection: Selection | None, *, num_pages: int) -> list[int]:
    if selection is None:
        return list(range(num_pages))
    units = selection.units_RU.flatten()
    pages = units if selection.unit == PAGE_SIZE else units // PAGE_SIZE
    return [int(page) for page in torch.unique(pages).tolist()]
