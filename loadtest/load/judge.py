"""Which requests were served in time, and what a run comes to."""

from collections.abc import Sequence
from enum import StrEnum

from loadtest.load.outcome import Outcome
from loadtest.load.overload import Stop
from loadtest.load.workloads import RequestClass, Slo


class Verdict(StrEnum):
    """What a run says about the server."""

    PASS = "pass"  # noqa: S105  no password
    """Enough requests were served in time."""
    MISSED = "missed"
    """Too few were, or none was offered."""
    CLIENT_SATURATED = "client saturated"
    """The generator was too slow: the run says nothing."""
    SERVER_SATURATED = "server saturated"
    """The server fell behind more and more, and the run was ended early."""
    INCOMPLETE = "incomplete"
    """The run was broken off."""


EXIT_CODES = {
    Verdict.PASS: 0,
    Verdict.MISSED: 1,
    Verdict.CLIENT_SATURATED: 7,
    Verdict.INCOMPLETE: 8,
    Verdict.SERVER_SATURATED: 9,
}
"""Of the process; 2 and 3 are wrong flags and settings."""


def met(outcome: Outcome, kind: RequestClass) -> bool:
    """Whether a request finished correctly and, unless its own client was slow, in time."""
    if not outcome.finished:
        return False
    return kind.pause_s > 0 or _in_time(outcome, kind.slo)


def verdict(
    attainments: Sequence[float | None],
    *,
    wanted: float,
    saturated: bool,
    complete: bool,
    stop: Stop | None = None,
) -> Verdict:
    """The verdict over the shares of all classes; None is a class that was offered nothing."""
    if not complete:
        return Verdict.INCOMPLETE
    if saturated or (stop is not None and stop.client):
        return Verdict.CLIENT_SATURATED
    if stop is not None:
        return Verdict.SERVER_SATURATED
    judged = [share for share in attainments if share is not None]
    return Verdict.PASS if judged and min(judged) >= wanted else Verdict.MISSED


def _in_time(outcome: Outcome, slo: Slo) -> bool:
    bounds = (
        (outcome.ttft_s, slo.ttft),
        (outcome.tpot_s, slo.tpot),
        (outcome.itl_max_s, slo.gap),
    )
    return all(value is None or value <= bound for value, bound in bounds)
