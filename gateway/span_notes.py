"""What a request's span says, in the names of OpenTelemetry's GenAI conventions; never its text."""

from gateway.job import GenerationJob, RequestReport
from shared.telemetry import gen_ai
from shared.telemetry.spans import current_span


class SpanNotes:
    """An observer that writes on the current span."""

    def first_token(self, job: GenerationJob, *, seconds: float) -> None:
        """Marks the moment, and says what was asked."""
        span = current_span()
        if span is None:
            return
        span.note(
            {
                gen_ai.OPERATION: gen_ai.operation_of(job.endpoint),
                gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
                gen_ai.REQUEST_MODEL: job.model,
                gen_ai.REQUEST_MAX_TOKENS: job.stop.max_tokens,
                gen_ai.INPUT_TOKENS: len(job.prompt_ids),
                "tandem.mode": job.options.mode.value,
            }
        )
        span.event("first_token", {"tandem.ttft_seconds": seconds})

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:
        """Never one event a token."""

    def finished(
        self, job: GenerationJob, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """Says what came out."""
        span = current_span()
        if span is not None:
            span.note(
                {
                    gen_ai.RESPONSE_MODEL: job.model,
                    gen_ai.FINISH_REASONS: [reason.value for reason in report.finish_reasons],
                    gen_ai.OUTPUT_TOKENS: completion_tokens,
                    "tandem.kept_tokens": report.kept_tokens,
                    "tandem.kv_bytes": report.kv_bytes,
                    "tandem.transport": report.transport,
                    "tandem.attended_ratio": report.attended_ratio,
                    "tandem.attempts": len(report.tries),
                    "tandem.replayed_tokens": report.replayed_tokens,
                }
            )

    def retried(self, reason: str) -> None:
        """Marks the moment."""
        span = current_span()
        if span is not None:
            span.event("retry", {gen_ai.ERROR_TYPE: reason})

    def disconnected(self, phase: str) -> None:
        """Says when the client left."""
        span = current_span()
        if span is not None:
            span.note({"tandem.cancelled": True, "tandem.cancelled_in": phase})

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """The server's own span says so."""

    def rejected(self, reason: str) -> None:
        """Says why nothing was done."""
        span = current_span()
        if span is not None:
            span.fail(reason)
