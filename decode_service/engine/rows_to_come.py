"""Whether rows are about to join: a step that was begun ahead would make them wait twice as long.

A step ahead is of the rows of the step before it. Rows that join while it is under way wait for it,
and it is dropped. So none is begun while a commit is: its answers join within a step or two.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class RowsToCome:
    """Commits under way: written by the event loop alone, read by the engine thread."""

    def __init__(self) -> None:
        self._commits = 0

    def __call__(self) -> bool:
        """Whether rows are about to join."""
        return self._commits > 0

    @contextmanager
    def expected(self) -> Iterator[None]:
        """A commit, from its arrival until it is adopted or refused."""
        self._commits += 1
        try:
            yield
        finally:
            self._commits -= 1


def no_rows_to_come() -> bool:
    """Where nobody can tell."""
    return False
