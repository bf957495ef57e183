"""What Locust is told of a request: one event a measure, in milliseconds, by class.

Failures are told by `e2e` without a time, so that no percentile counts them.
"""

from locust.env import Environment

from loadtest.load.outcome import MEASURES, Outcome


class RequestFailed(Exception):
    """A failure as Locust counts it; its text is the failure's name alone, so that they add up."""


def fire_events(environment: Environment, outcome: Outcome) -> None:
    """Fires the events of one request; one that the client left fires none."""
    if outcome.left:
        return
    if outcome.failure is not None:
        _fire(environment, "e2e", outcome, response_time=None, error=RequestFailed(outcome.failure))
        return
    for measure in MEASURES:
        seconds = getattr(outcome, f"{measure}_s")
        if seconds is not None:
            _fire(environment, measure, outcome, response_time=seconds * 1000, error=None)


def _fire(
    environment: Environment,
    measure: str,
    outcome: Outcome,
    *,
    response_time: float | None,
    error: RequestFailed | None,
) -> None:
    environment.events.request.fire(  # type: ignore[no-untyped-call]  # Locust's own
        request_type=measure,
        name=outcome.kind,
        response_time=response_time,
        response_length=outcome.answer_tokens,
        exception=error,
        context={},
    )
