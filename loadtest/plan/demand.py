"""The requests of a plan: the same sizes in the same order at any rate, for all arms."""

from collections.abc import Iterator
from itertools import islice, pairwise
from random import Random

from loadtest.load.plan import PlannedRequest
from loadtest.load.schedule import plan_of, schedule_of
from loadtest.load.settings import LoadSettings
from shared.errors import ConfigError

_UNSIMULATED = ("cancel", "slow_reader", "multi_turn", "tools")


def refuse_unsimulated(workload: str) -> None:
    """Raises ConfigError for clients that a simulation does not know."""
    if workload in _UNSIMULATED:
        raise ConfigError(
            f"workload {workload!r} cannot be simulated: clients that leave, read slowly or answer "
            "back are not; choose chat, rag, reasoning, mixed or trace"
        )


class Demand:
    """Requests without end at any rate.

    Args:
        settings: workload, sizes, bounds, variation and seed of a load run.

    Raises:
        ConfigError: the workload has clients that a simulation does not know.
    """

    def __init__(self, settings: LoadSettings) -> None:
        refuse_unsimulated(settings.workload)
        self.kinds = settings.classes
        self.attainment = settings.attainment
        self.seed = settings.seed
        self._variation = settings.variation
        self._requests: list[PlannedRequest] = []
        self._moments: list[float] = []
        if settings.trace is None:
            self._more = plan_of(settings)
            self._gaps = _unit_gaps(settings)
        else:
            self._recorded(settings)

    def take(self, count: int) -> list[PlannedRequest]:
        """The first requests."""
        self._requests.extend(islice(self._more, max(0, count - len(self._requests))))
        return self._requests[:count]

    def moments(self, count: int, rate: float) -> list[float]:
        """When they come, at `rate` requests a second in the mean."""
        at = self._moments[-1] if self._moments else 0.0
        for gap in islice(self._gaps, max(0, count - len(self._moments))):
            at += gap
            self._moments.append(at)
        return [moment / rate for moment in self._moments[:count]]

    def _recorded(self, settings: LoadSettings) -> None:
        """A trace's own sizes and gaps, over and over, stretched to a mean gap of 1."""
        rows = schedule_of(settings)
        last = rows[-1][0].due_s
        if len(rows) < 2 or not last:  # noqa: PLR2004  a gap takes two
            raise ConfigError(
                "a trace of one moment has no gaps to scale: its requests came all at once; give "
                "a longer part of it (--seconds)"
            )
        mean = last / (len(rows) - 1)
        dues = [arrival.due_s for arrival, _ in rows]
        gaps = [mean, *(b - a for a, b in pairwise(dues))]
        self._gaps = (gaps[i % len(gaps)] / mean for i in _numbers())
        self._more = (rows[i % len(rows)][1] for i in _numbers())


def _unit_gaps(settings: LoadSettings) -> Iterator[float]:
    """Gaps of a renewal process with a mean of 1."""
    shape = settings.variation**-2
    random = Random(f"{settings.seed}:arrivals")
    while True:
        yield random.gammavariate(shape, 1 / shape)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
