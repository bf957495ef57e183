"""Takes a worker out of rotation after consecutive lost connections and defects."""

from dataclasses import dataclass

MAX_COOLDOWN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When a breaker opens and for how long."""

    failures: int
    """Consecutive failures that open it."""
    cooldown_s: float
    """First pause before one trial, in seconds; doubles at each failed trial."""


class Breaker:
    """Closed, open, or due for one trial. Overload, refusals and cancels are not failures."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._failures = 0
        self._cooldown_s = settings.cooldown_s
        self._open_until: float | None = None
        self._gone = False

    def gone(self, now: float) -> bool:
        """Whether nobody listened there a moment ago: not even a last resort."""
        return self._gone and not self.allows(now)

    def allows(self, now: float) -> bool:
        """Whether the worker may be chosen; changes nothing."""
        return self._open_until is None or now >= self._open_until

    def chosen(self, now: float) -> None:
        """The worker was chosen: if this is a trial, no second one starts before its result."""
        if self._open_until is not None:
            self._open_until = now + self._cooldown_s

    def succeeded(self) -> None:
        """The worker answered."""
        self._failures = 0
        self._cooldown_s = self._settings.cooldown_s
        self._open_until = None
        self._gone = False

    def failed(self, now: float, *, gone: bool = False) -> None:
        """The worker could not be reached; one that is `gone` needs no second failure."""
        self._gone = self._gone or gone
        self._failures = self._settings.failures if gone else self._failures + 1
        if self._open_until is not None:
            self._cooldown_s = min(MAX_COOLDOWN_S, self._cooldown_s * 2)
        if self._failures >= self._settings.failures:
            self._open_until = now + self._cooldown_s
