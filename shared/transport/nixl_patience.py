"""How long to sleep over writes and between looks for notices.

Between two GPUs a write goes on by itself, and a thread that polls takes the interpreter from the
one that launches the next layers. On the host polling is what moves the bytes, so nobody sleeps.
"""

import threading
import time
from collections.abc import Iterator

FIRST_PAUSE_S = 0.0001
"""Between the first two looks for notices; later ones take up to the longest."""

_LONGEST_PAUSE_S = 0.0005
_LONGEST_DEVICE_PAUSE_S = 0.0001
"""A handoff between GPUs is over in less than a millisecond."""

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


class NoticePatience:
    """Of one agent that waits for notices.

    Args:
        on_device: whether they tell of writes between GPUs.
    """

    def __init__(self, *, on_device: bool) -> None:
        self._longest_s = _LONGEST_DEVICE_PAUSE_S if on_device else _LONGEST_PAUSE_S
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """Somebody knows that a notice must be there: the next look comes at once. Any thread."""
        self._hurried.set()

    def looks(self, wait_s: float) -> Iterator[None]:
        """One look each, for as long as `wait_s` and at least one."""
        until, pause = time.monotonic() + wait_s, FIRST_PAUSE_S
        while True:
            yield
            if time.monotonic() >= until:
                return
            if self._hurried.wait(pause):
                self._hurried.clear()
                pause = FIRST_PAUSE_S
            else:
                pause = min(2 * pause, self._longest_s)
