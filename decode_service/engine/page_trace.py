"""A step runner that notes what traced rows read; a step in which none is noted costs nothing.

Watching takes the choices of at most four layers off the device in a step.
"""

from decode_service.engine.page_record import PageRecord
from decode_service.engine.runner import LayerRead, ObservedRunner
from decode_service.engine.sequence import Sequence
from shared.types.sampling import SampledToken


class TracingRunner:
    """A step runner around another one.

    Args:
        inner: does the steps.
    """

    def __init__(self, inner: ObservedRunner) -> None:
        self._inner = inner

    def step(self, rows: list[Sequence]) -> list[SampledToken]:
        """See `DecodeRunner.step`."""
        traced = [row for row in rows if row.record is not None]
        if not traced:
            return self._inner.step(rows)
        before = [(row.position, row.attended, row.dense) for row in traced]
        due = {row: row.record for row in traced if row.record is not None and row.record.begin()}
        tokens = self._inner.step(rows, observer=_Notes(due) if due else None)
        for row, (position, attended, dense) in zip(traced, before, strict=True):
            assert row.record is not None, "chosen by it"
            row.record.end(
                position=position, attended=row.attended - attended, dense=row.dense - dense
            )
        return tokens


class _Notes:
    """A step observer that tells the records of some rows."""

    def __init__(self, records: dict[Sequence, PageRecord]) -> None:
        self._records = records

    def watches(self, row: Sequence) -> bool:
        return row in self._records

    def layer_read(self, seen: LayerRead) -> None:
        record = self._records.get(seen.row)
        if record is not None:
            record.layer_read(
                seen.layer, seen.read.selection, slots=seen.read.slots, planned=seen.planned
            )
