"""What one request has done so far, across its attempts."""

import time
from dataclasses import dataclass, field

from gateway.admission import Ticket
from gateway.answer import Answer
from gateway.clients.events import DecodeFinished, PrefillStarted, Sealed
from gateway.job import Finished, GenerationJob, RequestReport, TextDelta
from gateway.observer import RequestObserver
from shared.errors import DeadlineError
from shared.types.handoff import HandoffKey
from shared.types.sampling import FinishReason, SampledToken


@dataclass(slots=True, kw_only=True)
class RunState:
    """Mutable record of one request; the only owner is its pipeline run."""

    job: GenerationJob
    """The request."""
    handoff_id: str
    """Unique name of the handoff."""
    answer: Answer
    """Its text."""
    ticket: Ticket
    """Its place in the queue."""
    observer: RequestObserver
    """Told what happens."""
    report: RequestReport = field(default_factory=RequestReport)
    """What the client will read."""
    first: SampledToken | None = None
    """The first token, once sampled; later attempts continue from it."""
    began_decode: bool = False
    """Tokens after the first were passed on: no attempt can take over."""
    attempts: int = 0
    """Attempt numbers given out."""
    avoid: set[str] = field(default_factory=set)
    """Workers that failed this request."""
    phase: str = "queue"
    """queue, prefill or decode."""
    _first_at: float = 0.0
    _last_at: float = 0.0

    def next_key(self) -> HandoffKey:
        """Name of the next attempt."""
        self.attempts += 1
        return HandoffKey(self.handoff_id, self.attempts)

    def remaining_s(self) -> float:
        """Time left.

        Raises:
            DeadlineError: none is.
        """
        left = self.job.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                "the request's time is over: the workers are slow or the answer is long; "
                "ask for fewer tokens or raise the gateway's request_timeout_s"
            )
        return left

    def started(self, event: PrefillStarted) -> None:
        """The prompt's turn came."""
        self.ticket.leave()
        self.phase = "prefill"
        self.report.kept_tokens = event.kept_tokens
        self.report.phases_s["prefill_queue"] = event.queue_seconds

    def take_first(self, token: SampledToken) -> TextDelta:
        """The first token, passed on once."""
        self.first = token
        self._first_at = self._last_at = time.monotonic()
        self.report.ttft_s = self._first_at - self.job.arrived
        self.observer.first_token(self.job, seconds=self.report.ttft_s)
        return self.answer.push([token])

    def sealed(self, event: Sealed) -> None:
        """The KV is on the decode side."""
        self.phase = "decode"
        self.report.kv_bytes = event.kv_bytes
        self.report.transport = event.transport
        self.report.kept_tokens = event.kept_tokens
        self.report.phases_s.update(event.phases_s)

    def take_more(self, tokens: tuple[SampledToken, ...]) -> TextDelta:
        """Tokens after the first."""
        self.began_decode = True
        before = self.answer.completion_tokens
        delta = self.answer.push(tokens)
        count = self.answer.completion_tokens - before
        now = time.monotonic()
        if count:
            self.observer.more_tokens(self.job, gap_s=now - self._last_at, count=count)
            self._last_at = now
        return delta

    def decoded(self, event: DecodeFinished) -> TextDelta:
        """The decode worker's last word."""
        self.report.attended = event.attended
        self.report.dense = event.dense
        self.report.pages = event.pages
        self.report.phases_s.update(event.phases_s)
        return self.answer.finish(event.reason, match=event.stop_match)

    def finish(self) -> Finished:
        """The last event."""
        count = self.answer.completion_tokens
        span = self._last_at - self._first_at
        self.report.prompt_tokens = len(self.job.prompt_ids)
        self.report.tokens_per_s = (count - 1) / span if count > 1 and span > 0 else 0.0
        self.observer.finished(self.job, self.report, completion_tokens=count)
        return Finished(
            reason=self.answer.reason or FinishReason.STOP,
            stop_match=self.answer.stop_match,
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=count,
            report=self.report,
        )
