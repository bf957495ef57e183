"""What the gateway measures, as an interface: the pipeline contains no metric calls."""

from typing import Protocol

from gateway.job import GenerationJob, RequestReport


class RequestObserver(Protocol):
    """Told about the life of requests; calls are cheap and never raise."""

    def first_token(self, job: GenerationJob, *, seconds: float) -> None:
        """The first token is here, `seconds` after arrival."""
        ...

    def more_tokens(self, job: GenerationJob, *, gap_s: float, count: int) -> None:
        """`count` tokens came `gap_s` after those before."""
        ...

    def finished(
        self, job: GenerationJob, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """The answer is complete."""
        ...

    def retried(self, reason: str) -> None:
        """Another attempt begins because of an error with the code `reason`."""
        ...

    def disconnected(self, phase: str) -> None:
        """The client left: phase is queue, prefill or decode."""
        ...

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """A request of any kind is over: outcome is ok, error or cancelled."""
        ...

    def rejected(self, reason: str) -> None:
        """A request was refused before any work."""
        ...
