"""Feeds the gateway's metrics and writes one log line a request."""

import structlog

from gateway.job import GenerationJob, RequestReport
from shared.telemetry.metrics import GatewayMetrics
from shared.telemetry.spans import current_trace_id

STALL_S = 1.0
"""Gap between two tokens above which a stream counts as stalled, in seconds."""

PHASES = {
    "gateway_queue": "gateway_queue",
    "prefill_queue": "prefill_queue",
    "prefill": "prefill",
    "transfer": "transfer",
    "decode_queue": "decode_queue",
    "first_decode": "first_decode",
    "decode": "stream",
}
"""Phases as workers report them, and the label of each; `select` is part of `prefill`."""

_log = structlog.get_logger(__name__)


class Recorder:
    """The observer that production uses.

    Args:
        metrics: where to count.
    """

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def first_token(self, _job: GenerationJob, /, *, seconds: float) -> None:
        """Observes the time to first token; OpenMetrics readers find its trace."""
        trace_id = current_trace_id()
        exemplar = {"trace_id": trace_id} if trace_id else None
        self._metrics.ttft_seconds.observe(seconds, exemplar=exemplar)

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:
        """Spreads a gap over the tokens that ended it."""
        if gap_s > STALL_S:
            self._metrics.stream_stalls.inc()
        for _ in range(count):
            self._metrics.inter_token_seconds.observe(gap_s / count)

    def finished(
        self, job: GenerationJob, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """Counts tokens and phases, and writes the summary line."""
        self._metrics.prompt_tokens.inc(report.prompt_tokens)
        self._metrics.output_tokens.inc(completion_tokens)
        if report.tokens_per_s > 0:
            self._metrics.tpot_seconds.observe(1 / report.tokens_per_s)
        for phase, seconds in report.phases_s.items():
            if phase in PHASES:
                self._metrics.phase_seconds.labels(phase=PHASES[phase]).observe(seconds)
        _log.info(
            "request done",
            request_id=job.request_id,
            endpoint=job.endpoint,
            completion_tokens=completion_tokens,
            **report.to_json(),
        )

    def retried(self, reason: str) -> None:
        """Counts a retry."""
        self._metrics.retries.labels(reason=reason).inc()

    def disconnected(self, phase: str) -> None:
        """Counts a client that left."""
        self._metrics.disconnects.labels(phase=phase).inc()

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """Counts a request of any outcome."""
        self._metrics.requests.labels(endpoint=endpoint, code=code, outcome=outcome).inc()
        self._metrics.e2e_seconds.observe(seconds)

    def rejected(self, reason: str) -> None:
        """Counts a refusal."""
        self._metrics.rejected.labels(reason=reason).inc()
