"""A run second by second: what was offered, served in time, late and lost, and how it recovered."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.load.judge import met
from loadtest.load.outcome import Outcome
from loadtest.load.workloads import RequestClass

RECOVERED = 0.8
"""Share of the goodput before the first failure that counts as recovered."""
SMOOTHED_S = 3
"""Seconds over which a goodput is taken: single seconds hold few requests."""


def timeline_of(
    outcomes: Sequence[Outcome], kinds: Mapping[str, RequestClass]
) -> list[dict[str, Any]]:
    """One row a second, JSON-ready: `offered` by start, `met`, `late` and `failed` by end.

    `failures` has the failed ones by reason; who left on purpose is in no column but the first.
    """
    judged = [o for o in outcomes if o.ended_s is not None and not o.left]
    offered = Counter(int(o.started_s) for o in outcomes)
    in_time = Counter(_end(o) for o in judged if met(o, kinds[o.kind]))
    finished = Counter(_end(o) for o in judged if o.finished)
    lost: dict[int, Counter[str]] = {}
    for outcome in judged:
        if outcome.failure is not None:
            lost.setdefault(_end(outcome), Counter())[outcome.failure] += 1
    last = max([*offered, *finished, *lost], default=-1)
    return [
        {
            "second": second,
            "offered": offered[second],
            "met": in_time[second],
            "late": finished[second] - in_time[second],
            "failed": lost.get(second, Counter()).total(),
            "failures": dict(lost.get(second, {})),
        }
        for second in range(last + 1)
    ]


def disturbance_of(timeline: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How goodput went around the failures, JSON-ready; None without a failure.

    `before_per_s` is the mean of the seconds before the first failure. From the first failure on,
    goodput is the mean of `SMOOTHED_S` seconds; `lowest_per_s` is its least while requests went on
    being offered, and `recovered_at_s` the first second at and after that from which it holds
    `RECOVERED` of what it was before. None where there is no such figure.
    """
    lost = [row["second"] for row in timeline if row["failed"]]
    if not lost:
        return None
    first = lost[0]
    before = statistics.mean(row["met"] for row in timeline[:first]) if first else None
    means = _smoothed(timeline, since=first)
    lowest = min(means, key=lambda second: means[second], default=None)
    recovered = None
    if before and lowest is not None:
        recovered = next((s for s in means if s >= lowest and means[s] >= RECOVERED * before), None)
    return {
        "first_failure_s": first,
        "last_failure_s": lost[-1],
        "failures": dict(sum((Counter(row["failures"]) for row in timeline), Counter())),
        "before_per_s": before,
        "lowest_per_s": None if lowest is None else means[lowest],
        "lowest_at_s": lowest,
        "recovered_at_s": recovered,
    }


def _smoothed(timeline: Sequence[Mapping[str, Any]], *, since: int) -> dict[int, float]:
    """Mean of served requests over some seconds, by the first of them, as long as there are any.

    Ends with the last second in which a request began: afterwards nothing is left to be served.
    """
    offered = [row["second"] for row in timeline if row["offered"]]
    last = offered[-1] if offered else -1
    return {
        second: statistics.mean(row["met"] for row in timeline[second : second + SMOOTHED_S])
        for second in range(since, last - SMOOTHED_S + 2)
    }


def _end(outcome: Outcome) -> int:
    assert outcome.ended_s is not None, "it has ended"
    return math.floor(outcome.ended_s)
