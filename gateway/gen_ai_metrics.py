"""The server metrics of OpenTelemetry's GenAI conventions, for collectors."""

from gateway.job import GenerationJob, RequestReport
from shared.telemetry import gen_ai
from shared.telemetry.histograms import Histogram, Histograms

HISTOGRAMS = (gen_ai.REQUEST_DURATION, gen_ai.TIME_TO_FIRST_TOKEN, gen_ai.TIME_PER_OUTPUT_TOKEN)


class GenAiMetrics:
    """An observer that counts what users feel, by operation and model.

    Args:
        histograms: where to count.
    """

    def __init__(self, histograms: Histograms) -> None:
        self._histograms = histograms
        self._model = ""

    def serves(self, model: str) -> None:
        """Says what runs here; a refused request has no model of its own."""
        self._model = model

    def first_token(self, job: GenerationJob, *, seconds: float) -> None:
        """Counts a time to first token."""
        self._observe(gen_ai.TIME_TO_FIRST_TOKEN, seconds, endpoint=job.endpoint)

    def more_tokens(self, _job: GenerationJob, /, *, gap_s: float, count: int) -> None:
        """Judged at the end, as a mean."""

    def finished(
        self,
        job: GenerationJob,
        report: RequestReport,
        *,
        completion_tokens: int,  # noqa: ARG002
    ) -> None:
        """Counts the pace of a complete answer; one of a single token has none."""
        if report.tokens_per_s > 0:
            seconds = 1 / report.tokens_per_s
            self._observe(gen_ai.TIME_PER_OUTPUT_TOKEN, seconds, endpoint=job.endpoint)

    def retried(self, reason: str) -> None:
        """A retry shows in the time to first token."""

    def disconnected(self, phase: str) -> None:
        """Counted by `answered`."""

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """Counts the whole duration, with what went wrong."""
        error = "" if outcome == "ok" else code
        self._observe(gen_ai.REQUEST_DURATION, seconds, endpoint=endpoint, error=error)

    def rejected(self, reason: str) -> None:
        """Counted by `answered`."""

    def close(self) -> None:
        """Sends the rest; blocks for seconds at most."""
        self._histograms.close()

    def _observe(
        self, histogram: Histogram, seconds: float, *, endpoint: str, error: str = ""
    ) -> None:
        attributes = {
            gen_ai.OPERATION: gen_ai.operation_of(endpoint),
            gen_ai.PROVIDER: gen_ai.PROVIDER_NAME,
            gen_ai.REQUEST_MODEL: self._model,
            gen_ai.RESPONSE_MODEL: self._model,
        }
        if error:
            attributes[gen_ai.ERROR_TYPE] = error
            del attributes[gen_ai.RESPONSE_MODEL]
        self._histograms.observe(histogram, seconds, attributes)
