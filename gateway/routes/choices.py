"""The choices of one answer: every prompt has n of them, and they grow side by side."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gateway import sse
from gateway.errors import ErrorReply
from gateway.job import Event, Finished, GenerationJob, TextDelta
from gateway.merge import merged
from gateway.routes.prepared import Streams
from gateway.routes.stream import error_frame
from gateway.schema.generation import ChoicesBody
from gateway.schema.replies import ReplyFormat, WholeAnswer, usage_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChoices:
    """A chat or a plain completion that may run."""

    jobs: Sequence[GenerationJob]
    """One a prompt."""
    body: ChoicesBody
    """As the client sent it."""
    format: ReplyFormat
    """How to answer."""
    headers: dict[str, str]
    """Headers about ignored fields."""

    @property
    def streamed(self) -> bool:
        """`stream`."""
        return bool(self.body.stream)

    async def whole(self, streams: Streams) -> dict[str, Any]:
        """See `Prepared`."""
        answers = await _whole_answers(streams, branches=self.jobs[0].branches)
        return self.format.whole(answers)

    async def frames(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """Deltas, finishes, usage when asked for, then [DONE].

        Choices appear in their order: an opening may come before its first token when a later
        choice was quicker.
        """
        chunks = _Chunks(self)
        choices = _choice_events(streams, branches=self.jobs[0].branches)
        async with aclosing(choices) as events:
            async for choice, event in events:
                for chunk in chunks.of(choice, event):
                    yield sse.frame(chunk)
        if self.body.wants_usage():
            yield sse.frame(chunks.last())
        yield sse.DONE

    def failure(self, reply: ErrorReply) -> bytes:
        """See `Prepared`."""
        return error_frame(reply)


Choice = tuple[int, Event]
"""Index of a choice, and what happened to it."""


def _choice_events(streams: Streams, *, branches: int) -> AsyncGenerator[Choice, None]:
    """Events of all prompts; the choices of the first prompt come first in number."""

    async def numbered(prompt: int) -> AsyncGenerator[Choice, None]:
        async with aclosing(streams[prompt]) as events:
            async for event in events:
                yield prompt * branches + event.branch, event

    return merged([numbered(prompt) for prompt in range(len(streams))])


async def _whole_answers(streams: Streams, *, branches: int) -> list[WholeAnswer]:
    """Every choice, collected, in order."""
    deltas: list[list[TextDelta]] = [[] for _ in range(len(streams) * branches)]
    ends: dict[int, Finished] = {}
    async with aclosing(_choice_events(streams, branches=branches)) as choices:
        async for choice, event in choices:
            if isinstance(event, Finished):
                ends[choice] = event
            else:
                deltas[choice].append(event)
    return [
        WholeAnswer(
            text="".join(delta.text for delta in pieces),
            tokens=tuple(token for delta in pieces for token in delta.tokens),
            end=ends[choice],
        )
        for choice, pieces in enumerate(deltas)
    ]


class _Chunks:
    """Chunks of a stream, and the counts that its usage is made of."""

    def __init__(self, prepared: PreparedChoices) -> None:
        self._body, self._reply = prepared.body, prepared.format
        self._prompt_tokens = sum(len(job.prompt_ids) for job in prepared.jobs)
        self._completion_tokens: dict[int, int] = {}
        self._opened = 0
        self._report: dict[str, object] = {}

    def of(self, choice: int, event: Event) -> Iterator[dict[str, Any]]:
        """What an event of a choice is told as."""
        self._completion_tokens[choice] = event.completion_tokens
        while self._opened <= choice:
            opening = self._reply.opening(self._opened)
            self._opened += 1
            if opening is not None:
                yield self._with_usage(opening)
        if isinstance(event, TextDelta):
            delta = self._reply.delta(choice, event)
            if delta is not None:
                yield self._with_usage(delta)
            return
        if event.last and choice == event.branch:  # that is, of the first prompt
            self._report = event.report.extension()
        yield self._with_usage(self._reply.ending(choice, event))

    def last(self) -> dict[str, Any]:
        """The usage chunk, with what the pair did for the first prompt."""
        return {**self._reply.usage_only(), "usage": self._usage(), "tandem": self._report}

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        if self._body.wants_running_usage():
            return {**chunk, "usage": self._usage()}
        if self._body.wants_usage():
            return {**chunk, "usage": None}
        return chunk

    def _usage(self) -> dict[str, int]:
        return usage_of(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=sum(self._completion_tokens.values()),
        )
