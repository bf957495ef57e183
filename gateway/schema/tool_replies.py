"""Chat answers with tool calls, as the SDKs accumulate them.

A call's first fragment has its id, type and name; all have its index. A chunk that ends an answer
also carries what was held back until the text was over.
"""

from collections.abc import Sequence
from typing import Any

from gateway.job import Finished, TextDelta
from gateway.schema.generation import ChoicesBody
from gateway.schema.replies import ChatFormat, Envelope, WholeAnswer
from gateway.tools.events import CallEvent, CallStarted, ContentPiece
from gateway.tools.parser import ToolCallParser
from gateway.tools.reading import CallReading
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.sampling import FinishReason


class ToolChatFormat(ChatFormat):
    """`chat.completion` of a request with tools.

    Args:
        envelope: what every chunk repeats.
        body: the request.
        tokenizer: for log-probabilities.
        reading: how calls are found.
    """

    def __init__(
        self,
        envelope: Envelope,
        *,
        body: ChoicesBody,
        tokenizer: Tokenizer,
        reading: CallReading,
    ) -> None:
        super().__init__(envelope, body=body, tokenizer=tokenizer)
        self._reading = reading
        self._parsers: dict[int, ToolCallParser] = {}

    def delta(self, choice: int, event: TextDelta) -> dict[str, Any] | None:
        """New content, new calls, and new arguments of the last one."""
        delta = _delta_of(self._parser(choice).push(event.text))
        logprobs = self._logprobs(event.tokens)
        if not delta and logprobs is None:
            return None
        return self._chunk(choice, delta, logprobs=logprobs)

    def ending(self, choice: int, event: Finished) -> dict[str, Any]:
        """The reason, with what was still held back."""
        parser = self._parser(choice)
        chunk = super().ending(choice, event)
        entry = chunk["choices"][0]
        entry["delta"] = _delta_of(parser.finish())
        entry |= _called(event, parser)
        return chunk

    def whole(self, answers: Sequence[WholeAnswer]) -> dict[str, Any]:
        """One choice a message."""
        reply = super().whole(answers)
        for choice, answer in zip(reply["choices"], answers, strict=True):
            parser = self._reading.parser()
            events = parser.push(answer.text) + parser.finish()
            choice["message"].update(_message_of(events))
            choice.update(_called(answer.end, parser))
        return reply

    def _parser(self, choice: int) -> ToolCallParser:
        return self._parsers.setdefault(choice, self._reading.parser())


def _called(event: Finished, parser: ToolCallParser) -> dict[str, Any]:
    """The finish reason of an answer that ended with its calls."""
    if event.reason is FinishReason.STOP and parser.complete:
        return {"finish_reason": "tool_calls"}
    return {}


def _delta_of(events: Sequence[CallEvent]) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ContentPiece):
            delta["content"] = delta.get("content", "") + event.text
        elif isinstance(event, CallStarted):
            calls[event.index] = {
                "index": event.index,
                "id": event.call_id,
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        else:
            call = calls.setdefault(event.index, {"index": event.index, "function": {}})
            function = call["function"]
            function["arguments"] = function.get("arguments", "") + event.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def _message_of(events: Sequence[CallEvent]) -> dict[str, Any]:
    delta = _delta_of(events)
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for call in delta.get("tool_calls", [])
    ]
    content = delta.get("content")
    return {"content": content, "tool_calls": calls} if calls else {"content": content or ""}
