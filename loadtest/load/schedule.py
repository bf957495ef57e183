"""The requests of an open loop with their moments: drawn, or of a trace."""

from collections.abc import Iterator

from loadtest.load.arrivals import Arrival, arrivals
from loadtest.load.plan import PlannedRequest, planned_requests
from loadtest.load.settings import LoadSettings
from loadtest.load.trace import read_trace
from loadtest.load.workloads import TRACE, WORKLOADS

Scheduled = tuple[Arrival, PlannedRequest]


def schedule_of(settings: LoadSettings) -> list[Scheduled]:
    """All requests of a run, in order.

    Raises:
        ConfigError: a trace cannot be read.
    """
    if settings.trace is not None:
        return _of_trace(settings)
    moments = arrivals(settings.all_stages, variation=settings.variation, seed=settings.seed)
    return list(zip(moments, plan_of(settings), strict=False))


def plan_of(settings: LoadSettings) -> Iterator[PlannedRequest]:
    """Requests without end."""
    return planned_requests(WORKLOADS[settings.workload], settings.classes, seed=settings.seed)


def _of_trace(settings: LoadSettings) -> list[Scheduled]:
    assert settings.trace is not None, "asked for a trace"
    kind = settings.classes[TRACE]
    return [
        (
            Arrival(row.due_s, 0),
            PlannedRequest(
                index=index,
                kind=kind,
                prompt_tokens=row.prompt_tokens,
                answer_tokens=row.answer_tokens,
                blocks=row.blocks,
            ),
        )
        for index, row in enumerate(read_trace(settings.trace, seconds=settings.seconds))
    ]
