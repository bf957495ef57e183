"""Which rows take part in the next step. Used by the engine thread alone."""

from collections.abc import Callable
from dataclasses import dataclass

from decode_service.engine.sequence import Sequence
from decode_service.engine.stop import StopTracker
from decode_service.engine.stream import Ending, TokenStream


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One running or waiting generation."""

    sequence: Sequence
    """Its state in the model's terms; its pages are held for the whole request."""
    tracker: StopTracker
    """When it ends."""
    stream: TokenStream
    """Where its tokens go."""
    on_end: Callable[[Ending], None]
    """Called once on the event loop when the engine no longer uses its pages."""
    deadline: float | None = None
    """Clock time at which the request is over."""
    submitted_at: float
    """Clock time at which both its Decode call and its KV were there."""
    started_at: float | None = None
    """Clock time at which its first step began."""
    first_token_at: float | None = None
    """Clock time at which its first step ended."""
    generated: int = 0
    """Tokens generated here."""


class Scheduler:
    """Continuous batching: rows join and leave between any two steps, first come first served.

    A row whose reader is too far behind rests without holding up the others; it keeps its pages.

    Args:
        max_batch: rows of one step; later rows wait.
    """

    def __init__(self, *, max_batch: int) -> None:
        self._max_batch = max_batch
        self._rows: dict[Row, None] = {}  # ordered by arrival

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: Row) -> bool:
        return row in self._rows

    @property
    def num_waiting(self) -> int:
        """Rows that have not taken part in a step yet."""
        return sum(row.started_at is None for row in self._rows)

    def add(self, row: Row) -> None:
        """Lets a row take part from the next step on."""
        assert row not in self._rows, "a row joins once"
        self._rows[row] = None

    def remove(self, row: Row) -> bool:
        """Takes a row out; False when it was not in."""
        if row not in self._rows:
            return False
        del self._rows[row]
        return True

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        return list(self._rows)

    def next_batch(self) -> list[Row]:
        """The rows of the next step."""
        batch = []
        for row in self._rows:
            if not row.stream.full:
                batch.append(row)
                if len(batch) == self._max_batch:
                    break
        return batch

    def overdue(self, now: float) -> list[Row]:
        """Rows whose time is over."""
        return [row for row in self._rows if row.deadline is not None and row.deadline <= now]

    def next_deadline(self) -> float | None:
        """The earliest deadline of any row."""
        return min((r.deadline for r in self._rows if r.deadline is not None), default=None)
