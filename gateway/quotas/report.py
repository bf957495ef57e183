"""Quotas as clients read them: `x-ratelimit-*` headers of the request that is being served.

The pipeline notes the verdict where it is made; the response takes it up wherever it is sent.
"""

import math
from contextvars import ContextVar

from gateway.quotas.base import Verdict
from gateway.quotas.window import Standing

_MINUTE_S = 60
_MILLIS = 1000


class QuotaReport:
    """What one API request was told about its key, over all its parts."""

    def __init__(self) -> None:
        self.charged = False
        self._verdict: Verdict | None = None

    def note(self, verdict: Verdict) -> None:
        """The latest standing counts."""
        self._verdict = verdict

    def headers(self) -> dict[str, str]:
        """The headers; none without limits."""
        found: dict[str, str] = {}
        if self._verdict is not None:
            found |= _headers("requests", self._verdict.requests)
            found |= _headers("tokens", self._verdict.tokens)
        return found


_current: ContextVar[QuotaReport | None] = ContextVar("quota_report", default=None)


def open_report() -> QuotaReport:
    """A report for the API request that this task begins to serve."""
    report = QuotaReport()
    _current.set(report)
    return report


def current_report() -> QuotaReport | None:
    """The report of the API request that this task works for; None when nobody reads one."""
    return _current.get()


def _headers(what: str, standing: Standing | None) -> dict[str, str]:
    if standing is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(standing.limit),
        f"x-ratelimit-remaining-{what}": str(standing.remaining),
        f"x-ratelimit-reset-{what}": duration_text(standing.reset_s),
    }


def duration_text(seconds: float) -> str:
    """As OpenAI writes durations: 120ms, 7s, 1m1s; rounded up, so that waiting it is enough."""
    if seconds < 1:
        return f"{math.ceil(max(0.0, seconds) * _MILLIS)}ms"
    minutes, rest = divmod(math.ceil(seconds), _MINUTE_S)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
