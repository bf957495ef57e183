"""What arms read, looked at in a few steps: recall of attention, recent slots, and churn.

Shapes: H query heads, R rows of a selection, U units, T slots read.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from decode_service.engine.kv_read import logical_slots
from decode_service.engine.recall import mean_mass
from decode_service.engine.runner import LayerRead
from decode_service.engine.sequence import Sequence as Row
from decode_service.sparsity.base import LayerRole, Selection
from shared.kv.geometry import PAGE_SIZE, pages_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a probe saw of one arm."""

    layer_recall: list[float | None]
    """Mean recall of each layer; None where it reads everything."""
    recall_p10: float | None
    """10th percentile over steps and layers."""
    recency_share: float | None
    """Share of the slots read that are recent."""
    churn: float | None
    """Share of the units read that were not read a step earlier."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """One arm's samples; scalars stay on the device until the end."""

    recall: dict[int, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    recent: list[torch.Tensor] = field(default_factory=list)
    churn: list[torch.Tensor] = field(default_factory=list)
    before: dict[int, Selection] = field(default_factory=dict)


class SelectionProbe:
    """A step observer that looks at sparse layers in two steps in a row, every so often.

    Args:
        rows: the arms' rows.
        recency_pages: recent pages of each arm.
        every: steps from one look to the next, at least 2.
    """

    def __init__(self, rows: Sequence[Row], *, recency_pages: Sequence[int], every: int) -> None:
        self._seen = {id(row): _Seen() for row in rows}
        self._rows = list(rows)
        self._recent = {id(row): pages for row, pages in zip(rows, recency_pages, strict=True)}
        self._every = every
        self._step = 0

    def wants(self, step: int) -> bool:
        """Turns to a step; whether it is one to look at."""
        self._step = step
        return step % self._every in {0, 1}

    def layer_read(self, seen: LayerRead) -> None:
        """Looks at a sparse layer that did not read everything."""
        own = self._seen.get(id(seen.row))
        selection = seen.read.selection
        if own is None or seen.row.row_policy.roles[seen.layer] is not LayerRole.SPARSE:
            return
        if self._step % self._every == 0:
            own.before.pop(seen.layer, None)
            if selection is not None:
                own.recall[seen.layer].append(mean_mass(seen.q_HD, seen.kv.keys(), selection))
                own.recent.append(
                    _recent_share(selection, slots=seen.kv.length, pages=self._recent[id(seen.row)])
                )
                own.before[seen.layer] = selection
            return
        before = own.before.get(seen.layer)
        if before is not None and selection is not None:
            own.churn.append(_churn(before, selection))

    def readings(self) -> list[Reading]:
        """What was seen of each row, in their order."""
        return [self._reading(row) for row in self._rows]

    def _reading(self, row: Row) -> Reading:
        own = self._seen[id(row)]
        recall = {layer: [float(v) for v in values] for layer, values in own.recall.items()}
        every = sorted(value for values in recall.values() for value in values)
        return Reading(
            layer_recall=[
                statistics.fmean(recall[layer]) if layer in recall else None
                for layer in range(len(row.prompt.layer_layouts))
            ],
            recall_p10=every[len(every) // 10] if every else None,
            recency_share=_mean(own.recent),
            churn=_mean(own.churn),
        )


def _recent_share(selection: Selection, *, slots: int, pages: int) -> torch.Tensor:
    first = (pages_for(slots) - pages) * PAGE_SIZE
    return (logical_slots(selection) >= first).float().mean()


def _churn(before: Selection, now: Selection) -> torch.Tensor:
    """Share of the units of `now`, its newest left out, that `before` did not have."""
    old_RU, new_RU = before.units_RU, now.units_RU[:, :-1]
    if old_RU.shape[0] != new_RU.shape[0] or before.unit != now.unit or not new_RU.numel():
        return torch.ones((), device=new_RU.device)
    # Rows apart: units of one row must not be found in another.
    stride = int(max(old_RU.max(), new_RU.max())) + 1
    offset_R1 = torch.arange(old_RU.shape[0], device=old_RU.device)[:, None] * stride
    return (~torch.isin(new_RU + offset_R1, old_RU + offset_R1)).float().mean()


def _mean(values: Sequence[torch.Tensor]) -> float | None:
    return float(torch.stack(list(values)).mean()) if values else None
