"""The choices of one answer: every prompt has n of them, and they grow side by side."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gateway import sse
from gateway.job import Event, Finished, GenerationJob, TextDelta
from gateway.merge import merged
from gateway.schema.generation import GenerationBody
from gateway.schema.replies import ReplyFormat, WholeAnswer, usage_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that may run."""

    jobs: Sequence[GenerationJob]
    """One a prompt."""
    body: GenerationBody
    """As the client sent it."""
    format: ReplyFormat
    """How to answer."""
    headers: dict[str, str]
    """Headers about ignored fields."""


Choice = tuple[int, Event]
"""Index of a choice, and what happened to it."""


async def choice_events(
    streams: Sequence[AsyncGenerator[Event, None]], *, branches: int
) -> AsyncGenerator[Choice, None]:
    """Events of all prompts; the choices of the first prompt come first in number."""

    async def numbered(prompt: int) -> AsyncGenerator[Choice, None]:
        async with aclosing(streams[prompt]) as events:
            async for event in events:
                yield prompt * branches + event.branch, event

    numbers = range(len(streams))
    async with aclosing(merged([numbered(prompt) for prompt in numbers])) as choices:
        async for choice in choices:
            yield choice


async def whole_answers(
    streams: Sequence[AsyncGenerator[Event, None]], *, branches: int
) -> list[WholeAnswer]:
    """Every choice, collected, in order."""
    deltas: list[list[TextDelta]] = [[] for _ in range(len(streams) * branches)]
    ends: dict[int, Finished] = {}
    async with aclosing(choice_events(streams, branches=branches)) as choices:
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


async def stream_frames(
    streams: Sequence[AsyncGenerator[Event, None]], prepared: Prepared
) -> AsyncGenerator[bytes, None]:
    """The frames of one streamed answer: deltas, finishes, usage when asked for, then [DONE].

    Choices appear in their order: an opening may come before its first token when a later choice
    was quicker.
    """
    frames = _Frames(prepared)
    choices = choice_events(streams, branches=prepared.jobs[0].branches)
    async with aclosing(choices) as events:
        async for choice, event in events:
            for chunk in frames.of(choice, event):
                yield sse.frame(chunk)
    if prepared.body.wants_usage():
        yield sse.frame(frames.last())
    yield sse.DONE


class _Frames:
    """Chunks of a stream, and the counts that its usage is made of."""

    def __init__(self, prepared: Prepared) -> None:
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
