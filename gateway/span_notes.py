"""What a request's span says, in the names of OpenTelemetry's GenAI conventions; never its text."""

from gateway.job import GenerationJob, RequestReport
from shared.telemetry.spans import current_span

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_PROVIDER = "tandem"


class SpanNotes:
    """An observer that writes on the current span."""

    def first_token(self, job: GenerationJob, *, seconds: float) -> None:
        """Marks the moment, and says what was asked."""
        span = current_span()
        if span is None:
            return
        span.note(
            {
                "gen_ai.operation.name": _OPERATIONS.get(job.endpoint, "generate_content"),
                "gen_ai.provider.name": _PROVIDER,
                "gen_ai.request.model": job.model,
                "gen_ai.request.max_tokens": job.stop.max_tokens,
                "gen_ai.usage.input_tokens": len(job.prompt_ids),
                "tandem.mode": job.options.mode.value,
            }
        )
        span.event("first_token", {"tandem.ttft_seconds": seconds})

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:
        """Never one event a token."""

    def finished(
        self, _job: GenerationJob, /, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """Says what came out."""
        span = current_span()
        if span is not None:
            span.note(
                {
                    "gen_ai.usage.output_tokens": completion_tokens,
                    "tandem.kept_tokens": report.kept_tokens,
                    "tandem.kv_bytes": report.kv_bytes,
                    "tandem.transport": report.transport,
                    "tandem.attended_ratio": report.attended_ratio,
                    "tandem.attempts": len(report.tries),
                }
            )

    def retried(self, reason: str) -> None:
        """Marks the moment."""
        span = current_span()
        if span is not None:
            span.event("retry", {"error.type": reason})

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
