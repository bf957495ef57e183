"""What is made of drift checks: a warning now and then, and a note on the health page.

Drift ends no answer and takes no worker out of service: it says that budgets or full layers should
be looked at.
"""

from collections import deque
from collections.abc import Callable

import structlog

from decode_service.engine.drift import DriftCheck

WARN_EVERY_S = 60.0
"""Seconds between two warnings; checks in between are counted in the next one."""

RECENT_CHECKS = 100
"""Checks that the note speaks of."""

_log = structlog.get_logger(__name__)


class DriftAlarm:
    """Judges checks by their mean over layers; on the event loop.

    Args:
        level: mass below which a check is low; 0: none is.
        clock: monotonic seconds.
    """

    def __init__(self, *, level: float, clock: Callable[[], float]) -> None:
        self._level = level
        self._clock = clock
        self._recent: deque[bool] = deque(maxlen=RECENT_CHECKS)
        self._warned_at: float | None = None
        self._unsaid = 0

    def judge(self, check: DriftCheck) -> bool:
        """Takes a check; whether it is low."""
        low = check.mean < self._level
        self._recent.append(low)
        if low:
            self._warn(check)
        return low

    @property
    def note(self) -> str:
        """For the health page; empty while no recent check was low."""
        num_low = sum(self._recent)
        if not num_low:
            return ""
        return (
            f"sparse layers read less than {self._level:g} of the attention mass in {num_low} of "
            f"the last {len(self._recent)} drift checks"
        )

    def _warn(self, check: DriftCheck) -> None:
        now = self._clock()
        if self._warned_at is not None and now - self._warned_at < WARN_EVERY_S:
            self._unsaid += 1
            return
        _log.warning(
            "sparse layers miss attention mass; raise page_budget or calibrate full_layers",
            handoff_id=check.handoff_id,
            position=check.position,
            mean_mass=round(check.mean, 4),
            least_mass=round(check.least, 4),
            least_layer=check.least_layer,
            level=self._level,
            unsaid=self._unsaid,
        )
        self._warned_at, self._unsaid = now, 0
