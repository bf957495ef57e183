"""Which KV slots a few layers of one row read, step by step, for a request that asked.

The record is bounded: when it is full, every second step of it goes, and from then on half as many
are noted.
"""

from collections.abc import Iterable, Sequence

from decode_service.sparsity.base import LayerRole, Selection
from shared.kv.geometry import PAGE_SIZE
from shared.types.trace import PageStep, PageTrace, Ranges, WatchedLayer

MAX_LAYERS = 4
"""Layers that are watched."""

MAX_COLUMNS = 256
"""Columns that a layer's slots are cut into."""

MAX_STEPS = 256
"""Steps that are told."""

MAX_RANGES = 32_768
"""Ranges of all steps together."""


class PageRecord:
    """The record of one row.

    Args:
        policy: name of its page policy.
        roles: role of every layer.
        prompt_slots: KV slots of the prompt in every layer.
        max_tokens: longest answer.
    """

    def __init__(
        self,
        *,
        policy: str,
        roles: Sequence[LayerRole],
        prompt_slots: Sequence[int],
        max_tokens: int,
    ) -> None:
        self._policy = policy
        sparse = [layer for layer, role in enumerate(roles) if role is LayerRole.SPARSE]
        self._layers = tuple(
            WatchedLayer(layer=layer, role=roles[layer].value, prompt_slots=prompt_slots[layer])
            for layer in _spread(sparse or list(range(len(roles))))
        )
        self._watched = {each.layer for each in self._layers}
        self._deltas = {layer for layer, role in enumerate(roles) if role is LayerRole.DELTA}
        longest = max(each.prompt_slots for each in self._layers) + max_tokens
        self._column_slots = PAGE_SIZE * -(-longest // (PAGE_SIZE * MAX_COLUMNS))
        self._columns = -(-longest // self._column_slots)
        self._stride = 1
        self._total = 0
        self._steps: list[PageStep] = []
        self._ranges = 0
        self._read: dict[int, Ranges] = {}
        self._refreshed: list[int] = []

    def begin(self) -> bool:
        """A step begins; whether it is noted. One that failed may begin again."""
        self._read.clear()
        self._refreshed.clear()
        return self._total % self._stride == 0

    def layer_read(
        self, layer: int, selection: Selection | None, *, slots: int, planned: bool
    ) -> None:
        """Notes what a layer read.

        Args:
            layer: decoder layer.
            selection: its choice; None: everything.
            slots: slots read.
            planned: whether the policy was told what the layer saw.
        """
        if layer in self._deltas and planned:
            self._refreshed.append(layer)
        if layer not in self._watched:
            return
        if selection is not None and not self._deltas:
            self._refreshed.append(layer)
        self._read[layer] = self._columns_of(selection, slots=slots)

    def end(self, *, position: int, attended: int, dense: int) -> None:
        """The step succeeded.

        Args:
            position: of the fed token.
            attended: slots read in it.
            dense: slots that full attention would have read.
        """
        self._total += 1
        if not self._read:
            return
        step = PageStep(
            step=self._total,
            position=position,
            attended=attended,
            dense=dense,
            refreshed=tuple(self._refreshed),
            read=tuple(self._read[each.layer] for each in self._layers),
        )
        self._steps.append(step)
        self._ranges += _num_ranges(step)
        while len(self._steps) > MAX_STEPS or self._ranges > MAX_RANGES:
            self._thin_out()

    def trace(self) -> PageTrace | None:
        """The record so far; None before the first step."""
        if not self._steps:
            return None
        return PageTrace(
            policy=self._policy,
            column_slots=self._column_slots,
            columns=self._columns,
            total_steps=self._total,
            stride=self._stride,
            layers=self._layers,
            steps=tuple(self._steps),
        )

    def _thin_out(self) -> None:
        self._stride *= 2
        self._steps = [step for step in self._steps if (step.step - 1) % self._stride == 0]
        self._ranges = sum(_num_ranges(step) for step in self._steps)

    def _columns_of(self, selection: Selection | None, *, slots: int) -> Ranges:
        if selection is None:
            return ((0, -(-slots // self._column_slots)),)
        per_column = self._column_slots // selection.unit
        return _joined({unit // per_column for unit in selection.units_RU.flatten().tolist()})


def _spread(layers: list[int]) -> list[int]:
    """At most four of them: the first, the last and what lies evenly between."""
    count = min(MAX_LAYERS, len(layers))
    if count <= 1:
        return layers
    return [layers[round(i * (len(layers) - 1) / (count - 1))] for i in range(count)]


def _joined(columns: Iterable[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for column in sorted(columns):
        if ranges and ranges[-1][1] == column:
            ranges[-1] = (ranges[-1][0], column + 1)
        else:
            ranges.append((column, column + 1))
    return tuple(ranges)


def _num_ranges(step: PageStep) -> int:
    return sum(len(ranges) for ranges in step.read)
