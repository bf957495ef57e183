"""Several observers behind the face of one."""

from gateway.job import GenerationJob, RequestReport
from gateway.observer import RequestObserver


class Observers:
    """Tells each of them, in order.

    Args:
        members: who is told.
    """

    def __init__(self, *members: RequestObserver) -> None:
        self._members = members

    def first_token(self, job: GenerationJob, *, seconds: float) -> None:
        """Passed on."""
        for member in self._members:
            member.first_token(job, seconds=seconds)

    def more_tokens(self, job: GenerationJob, *, gap_s: float, count: int) -> None:
        """Passed on."""
        for member in self._members:
            member.more_tokens(job, gap_s=gap_s, count=count)

    def finished(
        self, job: GenerationJob, report: RequestReport, *, completion_tokens: int
    ) -> None:
        """Passed on."""
        for member in self._members:
            member.finished(job, report, completion_tokens=completion_tokens)

    def retried(self, reason: str) -> None:
        """Passed on."""
        for member in self._members:
            member.retried(reason)

    def disconnected(self, phase: str) -> None:
        """Passed on."""
        for member in self._members:
            member.disconnected(phase)

    def answered(self, *, endpoint: str, code: str, outcome: str, seconds: float) -> None:
        """Passed on."""
        for member in self._members:
            member.answered(endpoint=endpoint, code=code, outcome=outcome, seconds=seconds)

    def rejected(self, reason: str) -> None:
        """Passed on."""
        for member in self._members:
            member.rejected(reason)
