"""A request under way: moments and marks as they come, an outcome at the end. Free of sockets."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from loadtest.load.dialogue import Call
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
    turn: int = 0
    """Which request of its conversation."""
    must_call: bool = False
    """The answer has to be a call."""


@dataclass(slots=True)
class Exchange:
    """Notes what happens; a client calls one method an event."""

    ticket: Ticket
    """Which request."""
    clock: Clock
    """Since the run began."""
    started_s: float = 0.0
    """Its start."""
    _moments: list[float] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)
    _calls: dict[int, list[str]] = field(default_factory=dict)
    _finish_reason: bool = False
    _usage: tuple[int, int] | None = None
    _work: tuple[int, int, int] = (0, 0, 0)
    _whole: bool = False
    _failure: str | None = None
    _detail: str = ""
    _left: bool = False
    _ended_s: float | None = None

    def begin(self) -> None:
        """Before anything is connected."""
        self.started_s = self.clock()

    def text(self, text: str) -> None:
        """A piece of the answer; an empty one is none."""
        if text:
            self._moments.append(self.clock())
            self._pieces.append(text)

    def call_part(self, index: int, *, id: str, name: str, arguments: str) -> None:  # noqa: A002
        """What a call grows by; its moment is that of a piece of the answer."""
        parts = (id, name, arguments)
        if any(parts):
            self._moments.append(self.clock())
            known = self._calls.setdefault(index, ["", "", ""])
            self._calls[index] = [old + new for old, new in zip(known, parts, strict=True)]

    @property
    def answer(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls so far, in order."""
        return tuple(
            Call(id=id_, name=name, arguments=arguments)
            for _, (id_, name, arguments) in sorted(self._calls.items())
        )

    @property
    def spoke(self) -> bool:
        """Something of the answer has come."""
        return bool(self._moments)

    def finish_reason(self) -> None:
        """The server said why the answer ended."""
        self._finish_reason = True

    def usage(self, *, prompt_tokens: int, answer_tokens: int) -> None:
        """The server counted."""
        self._usage = prompt_tokens, answer_tokens

    def work(self, *, kept_tokens: int, attended: int, dense: int) -> None:
        """The server says what the pair did."""
        self._work = kept_tokens, attended, dense

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

    def cut(self) -> None:
        """The run is over and waits no longer."""
        self.fail(Failure.UNFINISHED, "the run was over")
        self.end()

    def outcome(self) -> Outcome:
        """What became of it."""
        failure = None if self._left else self._failure or self._missing()
        ended = failure is None and not self._left
        request, moments = self.ticket.request, self._moments
        prompt_tokens, answer_tokens = self._usage or (0, 0)
        gaps = [after - before for before, after in pairwise(moments)]
        spoken = moments[-1] - moments[0] if moments else 0.0
        kept_tokens, attended, dense = self._work
        took = None if self._ended_s is None else self._ended_s - self.started_s
        return Outcome(
            index=request.index,
            kind=request.kind.name,
            stage=self.ticket.stage,
            turn=self.ticket.turn,
            due_s=self.ticket.due_s,
            started_s=self.started_s,
            ended_s=self._ended_s,
            e2e_s=took if ended else None,
            ttft_s=moments[0] - self.started_s if ended else None,
            itl_mean_s=spoken / len(gaps) if ended and gaps else None,
            itl_max_s=max(gaps) if ended and gaps else None,
            tpot_s=spoken / (answer_tokens - 1) if ended and answer_tokens > 1 else None,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            kept_tokens=kept_tokens,
            attended=attended,
            dense=dense,
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
        if self.ticket.must_call:
            return self._missing_of_calls()
        return None if self._moments else Failure.NO_TEXT

    def _missing_of_calls(self) -> str | None:
        if not self._calls:
            return Failure.NO_CALL
        return None if all(_is_object(call.arguments) for call in self.calls) else Failure.BAD_CALL


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
