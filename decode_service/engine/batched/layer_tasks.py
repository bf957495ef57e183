"""What each layer of a batch's step does: host arithmetic, no tensors.

Layers of one length group whose rows all hold the same tokens form a slot class: they share one
choice of pages between two Δ-layers.
"""

from dataclasses import dataclass
from functools import lru_cache

from decode_service.engine.kv_cache import LengthGroup
from decode_service.sparsity.base import LayerRole

LayerLayouts = tuple[int, ...]
"""Layout of each layer of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTask:
    """One layer."""

    slot_class: int
    """Its slot class."""
    group: LengthGroup
    """Its length group."""
    reads_choice: bool
    """Whether it reads the choice that was made for its class; else every slot."""
    chooses_for: tuple[int, ...] = ()
    """Classes that it makes a choice for; only a Δ-layer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayers:
    """The layers as a batch of rows goes through them."""

    roles: tuple[LayerRole, ...]
    """Role of every layer."""
    classes: tuple[int, ...]
    """Slot class of every layer, numbered from 0 in order of appearance."""
    whole_layers: int
    """The cache's split: layers 0..whole_layers-1 are in the FRONT group."""

    @property
    def mapped_classes(self) -> tuple[int, ...]:
        """Classes whose rows may hold a part of their prompt, where a choice needs to know which.

        FRONT layers hold every prompt token, and layers that choose nothing carry no scores over.
        """
        if LayerRole.SPARSE not in self.roles:
            return ()
        return tuple(sorted(set(self.classes[self.whole_layers :])))

    def group_of(self, layer: int) -> LengthGroup:
        """Length group of a layer."""
        return LengthGroup.FRONT if layer < self.whole_layers else LengthGroup.REST

    def first_of(self, slot_class: int) -> int:
        """The first layer of a class."""
        return self.classes.index(slot_class)

    def sparse(self, group: LengthGroup) -> list[int]:
        """Sparse layers of a group."""
        return [
            layer
            for layer, role in enumerate(self.roles)
            if role is LayerRole.SPARSE and self.group_of(layer) is group
        ]

    def tasks(self, *, choosing: bool) -> tuple[LayerTask, ...]:
        """What each layer does in a step that chooses, or in one that reads everything."""
        serves = self._serves() if choosing else {}
        return tuple(
            LayerTask(
                slot_class=self.classes[layer],
                group=self.group_of(layer),
                reads_choice=choosing and role is LayerRole.SPARSE,
                chooses_for=serves.get(layer, ()),
            )
            for layer, role in enumerate(self.roles)
        )

    def _serves(self) -> dict[int, tuple[int, ...]]:
        """Classes of the sparse layers between each Δ-layer and the next one."""
        found: dict[int, tuple[int, ...]] = {}
        planner = -1
        for layer, role in enumerate(self.roles):
            if role is LayerRole.DELTA:
                planner, found[layer] = layer, ()
            elif role is LayerRole.SPARSE:
                served, own = found[planner], self.classes[layer]
                found[planner] = served if own in served else (*served, own)
        return found


@lru_cache(maxsize=64)
def slot_classes(layouts: frozenset[LayerLayouts], *, whole_layers: int) -> tuple[int, ...]:
    """Class of every layer of a batch whose rows have `layouts`, each row's layer by layer."""
    distinct = sorted(layouts)
    numbers: dict[tuple[object, ...], int] = {}
    return tuple(
        numbers.setdefault((layer < whole_layers, *held), len(numbers))
        for layer, held in enumerate(zip(*distinct, strict=True))
    )
