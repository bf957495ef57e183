"""How long to sleep over a write before it is polled for: a GPU's link needs nobody to spin for it.

Between two GPUs a write goes on by itself, and a thread that polls takes the interpreter from the
one that launches the next layers. On the host polling is what moves the bytes, so nobody sleeps.
"""

import time

_SHARE = 0.8
_SHORTEST_S = 0.0001
_SPINS = 50
_SPINS_AFTER_REST = 1000


class WritePatience:
    """Learns the speed of writes.

    Args:
        sleeps: whether writes go on while nobody polls.
    """

    def __init__(self, *, sleeps: bool) -> None:
        self.spins = _SPINS_AFTER_REST if sleeps else _SPINS
        self._sleeps = sleeps
        self._fastest = 0.0
        self._last_done = 0.0

    def rest(self, nbytes: int, *, since: float) -> None:
        """Sleeps through most of the time that a write posted at `since` will take."""
        if not self._sleeps or not self._fastest:
            return
        begun = max(since, self._last_done)
        left = begun + _SHARE * nbytes / self._fastest - time.monotonic()
        if left > _SHORTEST_S:
            time.sleep(left)

    def done(self, nbytes: int, *, since: float) -> None:
        """A write ended now."""
        now = time.monotonic()
        seconds = now - max(since, self._last_done)
        self._last_done = now
        if seconds > 0:
            self._fastest = max(self._fastest, nbytes / seconds)
