"""Every registered page policy with parameters that fit the tiny model, and what it reads."""

from decode_service.engine.runner import LayerRead
from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import Selection
from decode_service.sparsity.registry import page_policies
from shared.types.methods import PageHeads, PageLayout, SparsityParams

BUDGET = 4
"""Pages: much less than the rows of the tests hold."""

EVERYTHING = 10**6
"""Pages: more than any row of the tests holds."""


def _params(policy: str, **changes: object) -> SparsityParams:
    given = {
        "full_layers": (0, 1, 3),
        "page_budget": BUDGET,
        "recency_pages": 1,
        "correction_layer": 4,
        "policy": policy,
    }
    return SparsityParams(**(given | changes))  # type: ignore[arg-type]


POLICIES = {
    **{name: _params(name) for name in page_policies().names() if name != "dense"},
    "delta by segment": _params("delta", layout=PageLayout.SEGMENT),
    "delta by KV head": _params("delta", heads=PageHeads.KV_HEAD),
    "delta every third step": _params("delta", refresh_every=3),
    "delta by KV head every second step": _params(
        "delta", heads=PageHeads.KV_HEAD, refresh_every=2
    ),
    "delta by mass": _params("delta", mass=0.7),
}
"""By the name that the tests show."""


class Reads:
    """A step observer that keeps what one row read."""

    def __init__(self, row: Sequence) -> None:
        self._row = row
        self.slots: list[list[list[int]]] = []
        """Logical slots of each layer and query head."""
        self.selections: dict[int, Selection] = {}
        """Choices of the layers that read one."""

    def layer_read(self, seen: LayerRead) -> None:
        """Keeps one layer."""
        if seen.row is not self._row:
            return
        num_heads, selection = seen.q_HD.shape[0], seen.read.selection
        if selection is None:
            self.slots.append([list(range(seen.kv.length))] * num_heads)
            return
        self.selections[seen.layer] = selection
        rows = [
            [
                slot
                for unit in units
                for slot in range(unit * selection.unit, (unit + 1) * selection.unit)
                if slot < seen.kv.length
            ]
            for units in selection.units_RU.tolist()
        ]
        share = num_heads // len(rows)
        self.slots.append([rows[head // share] for head in range(num_heads)])
