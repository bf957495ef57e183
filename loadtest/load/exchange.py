"""A request under way: moments and marks as they come, an outcome at the end. Free of sockets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.load.outcome import Failure, Outcome
from loadtest.load.plan import PlannedRequest

Clock = Callable[[], float]
"""Seconds of a clock that never goes back."""

_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request and its place in the run."""

    request: PlannedRequest
    """What it is."""
    due_s: float
    """When it should begin, since the run began."""
    stage: int = 0
    """The stage that it arrived in."""


@dataclass(slots=True)
class Exchange:
    """Notes what happens; a client calls one method an event."""

    ticket: Ticket
    """Which request."""
    clock: Clock
    """Since the run began."""
    started_s: float = 0.0
    """Its start."""
    _texts: list[float] = field(default_factory=list)
    _finish_reason: bool = False
    _usage: tuple[int, int] | None = None
    _whole: bool = False
    _failure: str | None = None
    _detail: str = ""
    _left: bool = False
    _ended_s: float = 0.0

    def begin(self) -> None:
        """Before anything is connected."""
        self.started_s = self.clock()

    def text(self, text: str) -> None:
        """A piece of the answer; an empty one is none."""
        if text:
            self._texts.append(self.clock())

    def finish_reason(self) -> None:
        """The server said why the answer ended."""
        self._finish_reason = True

    def usage(self, *, prompt_tokens: int, answer_tokens: int) -> None:
        """The server counted."""
        self._usage = prompt_tokens, answer_tokens

    def whole(self) -> None:
        """The stream's last mark came."""
        self._whole = True

    def fail(self, failure: str, detail: str = "") -> None:
        """The first failure is the one that counts."""
        if self._failure is None:
            self._failure, self._detail = failure, detail[:_DETAIL]

    def leave(self) -> None:
        """The client goes on purpose."""
        self._left = True

    def end(self) -> None:
        """Nothing more comes."""
        self._ended_s = self.clock()

    def outcome(self) -> Outcome:
        """What became of it."""
        failure = None if self._left else self._failure or self._missing()
        ended = failure is None and not self._left
        request = self.ticket.request
        prompt_tokens, answer_tokens = self._usage or (0, 0)
        gaps = [after - before for before, after in zip(self._texts, self._texts[1:], strict=False)]
        spoken = self._texts[-1] - self._texts[0] if self._texts else 0.0
        return Outcome(
            index=request.index,
            kind=request.kind.name,
            stage=self.ticket.stage,
            due_s=self.ticket.due_s,
            started_s=self.started_s,
            e2e_s=self._ended_s - self.started_s if ended else None,
            ttft_s=self._texts[0] - self.started_s if ended else None,
            itl_mean_s=spoken / len(gaps) if ended and gaps else None,
            itl_max_s=max(gaps) if ended and gaps else None,
            tpot_s=spoken / (answer_tokens - 1) if ended and answer_tokens > 1 else None,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            failure=failure,
            detail=self._detail if failure is not None else "",
            left=self._left,
        )

    def _missing(self) -> str | None:
        if not self._whole:
            return Failure.TRUNCATED
        if not self._finish_reason:
            return Failure.NO_FINISH_REASON
        if self._usage is None:
            return Failure.NO_USAGE
        return None if self._texts else Failure.NO_TEXT
