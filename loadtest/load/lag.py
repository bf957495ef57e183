"""Whether the generator kept its schedule: a late one measures itself, not the server."""

from collections.abc import Sequence
from typing import Any

from loadtest.load.outcome import Outcome
from loadtest.spread import percentile


def lag_of(outcomes: Sequence[Outcome], *, limit: float) -> dict[str, Any]:
    """How late requests began, JSON-ready.

    `share` is how far the generator had fallen behind: the lag of the request that was due last,
    over the moment when it was due. Above `limit` the client is saturated: the offered rate was
    not the one that was asked for.

    Args:
        outcomes: of an open loop, at least one.
        limit: largest share.
    """
    lags = [max(0.0, outcome.started_s - outcome.due_s) for outcome in outcomes]
    last = max(outcomes, key=lambda outcome: outcome.due_s)
    share = max(0.0, last.started_s - last.due_s) / last.due_s if last.due_s else 0.0
    return {
        "p50_s": percentile(lags, 50),
        "p99_s": percentile(lags, 99),
        "max_s": max(lags),
        "share": share,
        "limit": limit,
        "client_saturated": share > limit,
    }
