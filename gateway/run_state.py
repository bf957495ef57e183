"""What one request has done so far, across its attempts."""

import time
from dataclasses import dataclass, field

from gateway.answer import Answer
from gateway.clients.events import DecodeFinished, PrefillStarted, Sealed
from gateway.entrance import Place
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
    answers: tuple[Answer, ...]
    """Its texts, one a branch."""
    place: Place
    """Its place in the queue."""
    observer: RequestObserver
    """Told what happens."""
    report: RequestReport = field(default_factory=RequestReport)
    """What the client will read."""
    shown: list[list[int]] = field(default_factory=list)
    """The tokens of each answer that were passed on; empty before the first ones. Later attempts
    continue from them."""
    began_decode: bool = False
    """The running attempt passed on more than it was given: only a replay can take over."""
    replays: int = 0
    """Times that a new pair took over an answer in mid-stream."""
    out_of_budget: bool = False
    """It might have been tried again, had the retry budget not been used up."""
    attempts: int = 0
    """Attempt numbers given out."""
    avoid: set[str] = field(default_factory=set)
    """Workers that failed this request."""
    phase: str = "queue"
    """queue, prefill or decode."""
    _last_at: dict[int, float] = field(default_factory=dict)
    _paused: bool = False
    _ended: set[int] = field(default_factory=set)

    def next_key(self) -> HandoffKey:
        """Name of the next attempt."""
        self.attempts += 1
        return HandoffKey(self.handoff_id, self.attempts)

    @property
    def last_shown(self) -> tuple[int, ...]:
        """The token of each answer that an attempt goes on from; none before the first ones."""
        return tuple(tokens[-1] for tokens in self.shown)

    @property
    def earlier_tokens(self) -> tuple[int, ...]:
        """The only answer's tokens before that one: a replay reads them with the prompt."""
        return tuple(self.shown[0][:-1]) if self.shown else ()

    @property
    def read_tokens(self) -> int:
        """Tokens that the next attempt has to read."""
        return len(self.job.prompt_ids) + len(self.earlier_tokens)

    def begin_replay(self) -> None:
        """The decode worker of the only answer is gone; the next attempt goes on from `shown`."""
        self.replays += 1
        self.began_decode = False
        self.phase = "prefill"
        self._paused = True
        self.report.replayed_tokens = len(self.shown[0])
        self.report.timeline.cut = time.monotonic()

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
        self.place.started()
        self.phase = "prefill"
        self.report.timeline.started = time.monotonic()
        self.report.kept_tokens = event.kept_tokens - len(self.earlier_tokens)
        self.report.phases_s["prefill_queue"] = event.queue_seconds

    @property
    def answered(self) -> bool:
        """Whether every answer has found its end."""
        return all(answer.reason is not None for answer in self.answers)

    @property
    def over(self) -> bool:
        """Whether every answer was finished."""
        return len(self._ended) == len(self.answers)

    def take_firsts(self, tokens: tuple[SampledToken, ...]) -> list[TextDelta]:
        """The first token of each answer, passed on once and in their order."""
        self.shown = [[token.token_id] for token in tokens]
        self.place.served()
        now = time.monotonic()
        self._last_at = dict.fromkeys(range(len(tokens)), now)
        self.report.timeline.first_token = now
        self.report.ttft_s = now - self.job.arrived
        self.observer.first_token(self.job, seconds=self.report.ttft_s)
        return [answer.push([t]) for answer, t in zip(self.answers, tokens, strict=True)]

    def sealed(self, event: Sealed) -> None:
        """The KV is on the decode side."""
        self.phase = "decode"
        # What a replay moves comes on top of what was moved before; what it traces is no prompt.
        self.report.kv_bytes = event.kv_bytes + (self.report.kv_bytes if self.replays else 0)
        self.report.transport = event.transport
        self.report.kept_tokens = event.kept_tokens - len(self.earlier_tokens)
        self.report.phases_s.update(event.phases_s)
        self.report.timeline.sealed = time.monotonic()
        if not self.replays:
            self.report.prompt_trace = event.trace or self.report.prompt_trace

    def take_more(self, branch: int, tokens: tuple[SampledToken, ...]) -> TextDelta:
        """Tokens of one answer after its first."""
        self.began_decode = True
        self.shown[branch] += [token.token_id for token in tokens]
        answer = self.answers[branch]
        before = answer.completion_tokens
        delta = answer.push(tokens)
        count = answer.completion_tokens - before
        now = time.monotonic()
        if self._paused:
            self._paused = False
            self.report.phases_s["replay"] = now - self.report.timeline.cut
        if count:
            self.observer.more_tokens(self.job, gap_s=now - self._last_at[branch], count=count)
            self._last_at[branch] = now
        return delta

    def decoded(self, branch: int, event: DecodeFinished) -> TextDelta:
        """The decode worker's last word on one answer."""
        report = self.report
        report.attended += event.attended
        report.dense += event.dense
        report.pages = event.pages
        if branch == 0:
            report.page_trace = event.trace
        for phase, seconds in event.phases_s.items():
            report.phases_s[phase] = max(seconds, report.phases_s.get(phase, 0.0))
        return self.answers[branch].finish(event.reason, match=event.stop_match)

    def finish(self, branch: int) -> Finished:
        """The last event of one answer; that of the last one completes the report."""
        self.began_decode = True
        self._ended.add(branch)
        if self.over:
            self._complete()
        answer = self.answers[branch]
        return Finished(
            reason=answer.reason or FinishReason.STOP,
            stop_match=answer.stop_match,
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=answer.completion_tokens,
            report=self.report,
            branch=branch,
            last=self.over,
        )

    def _complete(self) -> None:
        count = sum(answer.completion_tokens for answer in self.answers)
        timeline = self.report.timeline
        later, span = count - len(self.answers), max(self._last_at.values()) - timeline.first_token
        timeline.ended = time.monotonic()
        self.report.completion_tokens = count
        self.report.finish_reasons = tuple(a.reason for a in self.answers if a.reason is not None)
        self.report.prompt_tokens = len(self.job.prompt_ids)
        self.report.tokens_per_s = later / span if later > 0 and span > 0 else 0.0
        self.observer.finished(self.job, self.report, completion_tokens=count)
