"""Whether rows are about to join: a step that was begun ahead would make them wait twice as long.

A step ahead is of the rows of the step before it. Rows that join while it is under way wait for it,
and it is dropped. So none is begun while a commit is: its answers join within a few steps. One that
is said ahead of its cache may wait for layers of a long prompt; then it no longer counts, since
steps without one ahead are slower.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FORETOLD_SECONDS = 0.05
"""How long a commit counts that is said ahead of its cache."""


class RowsToCome:
    """Commits under way: written by the event loop alone, read by the engine thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}

    def __call__(self) -> bool:
        """Whether rows are about to join."""
        return any(self._clock() < until for until in list(self._until.values()))

    @contextmanager
    def expected(self, *, foretold: bool) -> Iterator[None]:
        """A commit, from its arrival until it is adopted or refused.

        Args:
            foretold: the cache is still computed.
        """
        key = object()
        self._until[key] = self._clock() + FORETOLD_SECONDS if foretold else math.inf
        try:
            yield
        finally:
            del self._until[key]


def no_rows_to_come() -> bool:
    """Where nobody can tell."""
    return False
