"""Whether a run has become hopeless: the server falls behind what is offered, more and more.

A run is stopped when one of these holds at an arrival:

- more requests are under way than `max_in_flight`;
- requests begin late, by more than a second and by more than the share of the schedule that the
  generator may be behind, `_LATE_ARRIVALS` times in a row: the generator is what has no capacity;
- the stage can no longer be served in time, since more requests have missed their bounds than may,
  and the queue still grows: over the last arrivals of the stage, at least `_WINDOW_ARRIVALS` of
  them and `_WINDOW_S` seconds, the number under way rises from third to third and by half in all,
  and fewer than `_KEPT_UP` of the requests that came have left.

The last rule ends no stage that could still pass, so that a wrong alarm in a run of one stage costs
figures, not a verdict. A ramp ends with its first hopeless stage, whatever the ones before it were.
"""

from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import mean
from typing import Any

_WINDOW_ARRIVALS = 30
_WINDOW_S = 5.0
_KEPT_UP = 0.8
_GROWTH = 1.5
_LATE_ARRIVALS = 20
_LATE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why and when a run ended early."""

    at_s: float
    """Since the run began."""
    reason: str
    """In words."""
    client: bool
    """The generator was what had no capacity."""
    in_flight: int
    """Requests under way then."""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a stage of a run can bear."""

    max_in_flight: int
    """Most requests under way."""
    max_lag: float
    """Largest share of the schedule that the generator may be behind."""
    may_miss: float
    """Requests of the stage that may miss their bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen at an arrival."""

    at_s: float
    """Since the run began."""
    lag_s: float
    """How late the arrival was."""
    in_flight: int
    """Requests under way, this one not yet."""
    ended: int
    """Requests of the run that have ended, in any way."""
    missed: int
    """Requests of the stage that have missed their bounds, those that wait for text included."""


class OverloadWatch:
    """Watches one stage.

    Args:
        bounds: of the stage.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._window: deque[Sight] = deque()
        self._late = 0

    def seen(self, sight: Sight) -> Stop | None:
        """Takes one arrival; a stop when the run is hopeless."""
        bounds = self._bounds
        self._late = self._late + 1 if self._is_late(sight) else 0
        if self._late >= _LATE_ARRIVALS:
            return _stop(
                sight, f"{self._late} requests in a row began late, the last one {sight.lag_s:.1f} "
                "s: the generator cannot keep the schedule", client=True,
            )  # fmt: skip
        if sight.in_flight > bounds.max_in_flight:
            return _stop(
                sight, f"{sight.in_flight} requests were under way, more than "
                f"{bounds.max_in_flight}",
            )  # fmt: skip
        self._keep(sight)
        if sight.missed > bounds.may_miss and self._grows():
            return _stop(
                sight, f"{sight.missed} requests have missed their bounds, more than the "
                f"{bounds.may_miss:.0f} that may, and those under way grew from "
                f"{self._window[0].in_flight} to {sight.in_flight} in "
                f"{sight.at_s - self._window[0].at_s:.0f} s",
            )  # fmt: skip
        return None

    def _is_late(self, sight: Sight) -> bool:
        return sight.lag_s > _LATE_S and sight.lag_s > self._bounds.max_lag * sight.at_s

    def _keep(self, sight: Sight) -> None:
        """The window is the shortest one that is long enough in time and in arrivals."""
        window = self._window
        window.append(sight)
        while len(window) > _WINDOW_ARRIVALS and sight.at_s - window[1].at_s >= _WINDOW_S:
            window.popleft()

    def _grows(self) -> bool:
        window = self._window
        first, last = window[0], window[-1]
        if len(window) < _WINDOW_ARRIVALS or last.at_s - first.at_s < _WINDOW_S:
            return False
        third = len(window) // 3
        counts = [sight.in_flight for sight in window]
        low, middle, high = (
            mean(islice(counts, start, start + third)) for start in (0, third, len(window) - third)
        )
        came = len(window) - 1
        left = last.ended - first.ended
        return low < middle < high and high >= _GROWTH * low and left < _KEPT_UP * came


def _stop(sight: Sight, reason: str, *, client: bool = False) -> Stop:
    return Stop(at_s=sight.at_s, reason=reason, client=client, in_flight=sight.in_flight)
