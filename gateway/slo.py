"""Bounds on what users feel, and how many requests keep within them."""

from dataclasses import dataclass

from gateway.job import GenerationJob, RequestReport
from shared.telemetry.metrics import GatewayMetrics

TTFT = "ttft"
TPOT = "tpot"
GOODPUT = "goodput"
"""Every bound kept, of all requests that should have been answered."""

_OUR_FAILURES = frozenset(
    {"RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED"}
)
_FIRST_SERVER_ERROR = 500
_OVERLOADED = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class SloBounds:
    """The service level that is promised."""

    ttft_s: float
    """Longest time to first token, in seconds."""
    tpot_s: float
    """Longest mean time per token after the first, in seconds."""


class SloWatch:
    """An observer that counts requests within and beyond the bounds.

    Requests that failed by our fault or for want of room are offered and not met; those that a
    client broke off or got wrong count nowhere.

    Args:
        metrics: where to count.
        bounds: the promise.
    """

    def __init__(self, metrics: GatewayMetrics, *, bounds: SloBounds) -> None:
        self._metrics = metrics
        self._bounds = bounds

    def first_token(self, _job: GenerationJob, /, *, seconds: float) -> None:
        """Judged at the end, with the rest."""

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:
        """Judged at the end, as a mean."""

    def finished(
        self,
        _job: GenerationJob,
        /,
        report: RequestReport,
        *,
        completion_tokens: int,  # noqa: ARG002
    ) -> None:
        """Judges a complete answer."""
        bounds = self._bounds
        in_time = self._judge(TTFT, met=report.ttft_s <= bounds.ttft_s)
        steady = True
        if report.tokens_per_s > 0:
            steady = self._judge(TPOT, met=1 / report.tokens_per_s <= bounds.tpot_s)
        self._judge(GOODPUT, met=in_time and steady)

    def retried(self, reason: str) -> None:
        """A retry shows in the time to first token."""

    def disconnected(self, phase: str) -> None:
        """A client's own choice."""

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:  # noqa: ARG002
        """Counts a request that got no answer and should have."""
        if outcome == "error" and _is_ours(code):
            self._judge(GOODPUT, met=False)

    def rejected(self, reason: str) -> None:
        """Counted by `answered`."""

    def _judge(self, slo: str, *, met: bool) -> bool:
        self._metrics.slo.labels(slo=slo).inc()
        if met:
            self._metrics.slo_met.labels(slo=slo).inc()
        return met


def _is_ours(code: str) -> bool:
    if code.isdecimal():
        return int(code) >= _FIRST_SERVER_ERROR or int(code) == _OVERLOADED
    return code in _OUR_FAILURES
