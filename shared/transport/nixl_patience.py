"""How long to sleep over a write before it is polled for: a GPU's link needs nobody to spin for it.

Between two GPUs a write goes on by itself, and a thread that polls takes the interpreter from the
one that launches the next layers. On the host polling is what moves the bytes, so nobody sleeps.
"""

import time

_FASTEST = 450e9
"""Bytes a second of NVLink 4 in one direction: no write is over earlier, and slower ones are polled
for, so that nothing need be learnt from writes that waited for a connection."""

_SHARE = 0.8
_SHORTEST_S = 0.0001
_SPINS = 50
_SPINS_AFTER_REST = 1000


class WritePatience:
    """Of one agent.

    Args:
        sleeps: whether writes go on while nobody polls.
    """

    def __init__(self, *, sleeps: bool) -> None:
        self.spins = _SPINS_AFTER_REST if sleeps else _SPINS
        self._sleeps = sleeps
        self._last_done = 0.0

    def rest(self, nbytes: int, *, since: float) -> None:
        """Sleeps through most of the time that a write posted at `since` takes at least."""
        if not self._sleeps:
            return
        begun = max(since, self._last_done)
        left = begun + _SHARE * nbytes / _FASTEST - time.monotonic()
        if left > _SHORTEST_S:
            time.sleep(left)

    def done(self) -> None:
        """A write ended now; the next one had the link no earlier."""
        self._last_done = time.monotonic()
