"""Counts what an open loop has come to at each arrival, and has every stage watched."""

from collections import Counter
from collections.abc import Collection

from loadtest.load.exchange import Exchange
from loadtest.load.judge import met
from loadtest.load.outcome import Outcome
from loadtest.load.overload import Bounds, OverloadWatch, Sight, Stop
from loadtest.load.schedule import Scheduled
from loadtest.load.settings import LoadSettings


class RunWatch:
    """Says when a run is hopeless.

    Args:
        settings: of the run.
        schedule: its arrivals.
    """

    def __init__(self, settings: LoadSettings, schedule: list[Scheduled]) -> None:
        planned: Counter[int] = Counter()
        for arrival, request in schedule:
            planned[arrival.stage] += request.num_turns
        self._watches = {
            stage: OverloadWatch(
                Bounds(
                    max_in_flight=settings.max_in_flight,
                    max_lag=settings.max_lag,
                    may_miss=(1 - settings.attainment) * count,
                )
            )
            for stage, count in planned.items()
        }
        self._missed: Counter[int] = Counter()
        self._ended = 0

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """Takes a request that is over."""
        self._ended += 1
        if not (outcome.left or met(outcome, exchange.ticket.request.kind)):
            self._missed[outcome.stage] += 1

    def arrival(
        self, stage: int, *, due_s: float, now_s: float, under_way: Collection[Exchange]
    ) -> Stop | None:
        """Looks at the run when a request is about to begin; a stop if it is hopeless."""
        waiting = sum(_is_overdue(each, now_s) for each in under_way if each.ticket.stage == stage)
        return self._watches[stage].seen(
            Sight(
                at_s=now_s,
                lag_s=now_s - due_s,
                in_flight=len(under_way),
                ended=self._ended,
                missed=self._missed[stage] + waiting,
            )
        )


def _is_overdue(exchange: Exchange, now_s: float) -> bool:
    """It has no text yet, and what comes now comes too late."""
    kind = exchange.ticket.request.kind
    waits = now_s - exchange.started_s
    return not exchange.spoke and kind.pause_s == 0 and waits > kind.slo.ttft
