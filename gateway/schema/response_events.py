"""A response as the events that its clients accumulate; the last one holds the whole of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gateway.errors import ErrorReply
from gateway.job import Event, Finished, TextDelta
from gateway.schema.response_items import CallItem, MessageItem, OpenItem
from gateway.schema.response_object import ResponseObject
from gateway.tools.events import CallEvent, CallStarted, ContentPiece
from gateway.tools.reading import CallReading
from shared.types.sampling import FinishReason, SampledToken

Json = dict[str, Any]

Logprobs = Callable[[Sequence[SampledToken]], list[Json]]
"""Entries of tokens; none when they were not asked for."""


class ResponseWriter:
    """Writes one response: numbered events, of which exactly one is the last.

    Args:
        response: describes it.
        reading: how calls are found; None: all text is content.
        logprobs: what is told of tokens.
    """

    def __init__(
        self, response: ResponseObject, *, reading: CallReading | None, logprobs: Logprobs
    ) -> None:
        self._response = response
        self._parser = None if reading is None else reading.parser()
        self._logprobs = logprobs
        self._number = 0
        self._done: list[Json] = []
        self._open: OpenItem | None = None
        self._last: Json | None = None

    @property
    def whole(self) -> Json:
        """The response; valid after its end."""
        assert self._last is not None, "every answer ends with a Finished"
        return self._last

    def of(self, event: Event) -> Iterator[Json]:
        """What an event of the answer is told as."""
        yield from self._numbered(self._beginning())
        if isinstance(event, TextDelta):
            yield from self._numbered(self._grown(event))
        else:
            yield from self._numbered(self._ending(event))

    def failed(self, reply: ErrorReply) -> Iterator[Json]:
        """What ends it when something went wrong; nothing when it has ended before."""
        if self._last is not None:
            return
        yield from self._numbered(self._beginning())
        last = [] if self._open is None else [self._open.described("incomplete")]
        self._last = self._response.failed([*self._done, *last], reply)
        yield from self._numbered([{"type": "response.failed", "response": self._last}])

    def _numbered(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            number, self._number = self._number, self._number + 1
            yield {**event, "sequence_number": number}

    def _beginning(self) -> Iterator[Json]:
        if self._number == 0:
            running = self._response.running()
            yield {"type": "response.created", "response": running}
            yield {"type": "response.in_progress", "response": running}

    def _grown(self, event: TextDelta) -> Iterator[Json]:
        if self._parser is not None:
            yield from self._read(self._parser.push(event.text))
            return
        logprobs = self._logprobs(event.tokens)
        if event.text or logprobs:
            yield from self._text(event.text, logprobs=logprobs)

    def _read(self, events: Iterable[CallEvent]) -> Iterator[Json]:
        for event in events:
            if isinstance(event, ContentPiece):
                yield from self._text(event.text, logprobs=[])
            elif isinstance(event, CallStarted):
                yield from self._close(complete=True)
                call = CallItem(len(self._done), call_id=event.call_id, name=event.name)
                self._open = call
                yield from call.opening()
            else:
                assert isinstance(self._open, CallItem), "arguments follow the start of their call"
                yield self._open.more(event.text)

    def _text(self, text: str, *, logprobs: list[Json]) -> Iterator[Json]:
        if not isinstance(self._open, MessageItem):
            yield from self._close(complete=True)
            message = MessageItem(len(self._done))
            self._open = message
            yield from message.opening()
        assert isinstance(self._open, MessageItem)
        yield self._open.more(text, logprobs=logprobs)

    def _ending(self, end: Finished) -> Iterator[Json]:
        if self._parser is not None:
            yield from self._read(self._parser.finish())
        if self._open is None:
            # An answer without any text is a message all the same.
            self._open = MessageItem(0)
            yield from self._open.opening()
        yield from self._close(complete=self._last_is_complete(end))
        self._last = self._response.ended(self._done, end)
        yield {"type": f"response.{self._last['status']}", "response": self._last}

    def _last_is_complete(self, end: Finished) -> bool:
        if isinstance(self._open, CallItem):
            return self._parser is not None and self._parser.complete
        return end.reason is not FinishReason.LENGTH

    def _close(self, *, complete: bool) -> Iterator[Json]:
        if self._open is None:
            return
        events = self._open.closing(complete=complete)
        self._done.append(events[-1]["item"])
        self._open = None
        yield from events
