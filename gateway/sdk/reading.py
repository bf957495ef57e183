"""Messages of a call into results, one by one and as a whole."""

from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.sdk.prompt import ToolCall
from gateway.sdk.results import (
    Answer,
    Delta,
    Event,
    Finished,
    Generation,
    Report,
    ToolCallDelta,
    Usage,
)
from protos.tandem.v1 import inference_pb2
from shared.errors import CancelledError, InternalError
from shared.types.sampling import SampledToken
from shared.wire.pages import pages_from_pb
from shared.wire.sampling import finish_from_pb, token_from_pb
from shared.wire.trace import request_trace_from_pb


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Growing:
    text: list[str] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    end: Finished | None = None


class CallReader:
    """Reads one call's messages in order, and remembers what they add up to."""

    def __init__(self) -> None:
        self.request_id = ""
        self.prompt_tokens = 0
        self._answers: dict[int, _Growing] = {}
        self._report: Report | None = None

    def take(self, message: inference_pb2.GenerateResponse) -> Event | None:
        """What a message tells; None for what no caller waits for."""
        match message.WhichOneof("event"):
            case "accepted":
                self.request_id = message.accepted.request_id
                self.prompt_tokens = message.accepted.prompt_tokens
                return None
            case "delta":
                return self._grown(_delta(message.delta))
            case "finished":
                return self._ended(_finished(message.finished))
            case _:  # an event of a newer gateway
                return None

    @property
    def started(self) -> bool:
        """Whether any part of an answer was handed over."""
        return bool(self._answers)

    def generation(self, *, closed: bool = False) -> Generation:
        """All of it, once the call has ended well.

        Args:
            closed: the caller ended the call, perhaps before its answers had ended.

        Raises:
            CancelledError: an answer has no end, since the call was closed before.
            InternalError: an answer has no end.
        """
        if self._report is None or any(a.end is None for a in self._answers.values()):
            if closed:
                raise CancelledError(
                    "the stream was closed before its end; there is no whole result"
                )
            raise InternalError(
                "the gateway ended the call before its answers had ended; see its log under the "
                f"request id {self.request_id}"
            )
        return Generation(
            request_id=self.request_id,
            prompt_tokens=self.prompt_tokens,
            answers=tuple(_answer(self._answers[index]) for index in sorted(self._answers)),
            report=self._report,
        )

    def _grown(self, delta: Delta) -> Delta:
        answer = self._answers.setdefault(delta.answer, _Growing())
        answer.text.append(delta.text)
        answer.tokens.extend(delta.tokens)
        for part in delta.tool_calls:
            call = answer.calls.setdefault(part.index, _Call())
            call.id, call.name = call.id or part.id, call.name or part.name
            call.arguments.append(part.arguments)
        return delta

    def _ended(self, end: Finished) -> Finished:
        self._answers.setdefault(end.answer, _Growing()).end = end
        self._report = end.report or self._report
        return end


def _answer(grown: _Growing) -> Answer:
    end = grown.end
    assert end is not None, "checked by the caller"
    calls = [grown.calls[index] for index in sorted(grown.calls)]
    return Answer(
        text="".join(grown.text),
        tokens=tuple(grown.tokens),
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments="".join(call.arguments))
            for call in calls
        ),
        reason=end.reason,
        stop_match=end.stop_match,
        usage=end.usage,
    )


def _delta(message: inference_pb2.GenerateDelta) -> Delta:
    return Delta(
        answer=message.answer,
        text=message.text,
        tokens=tuple(token_from_pb(token) for token in message.tokens),
        tool_calls=tuple(
            ToolCallDelta(index=c.index, id=c.id, name=c.name, arguments=c.arguments)
            for c in message.tool_calls
        ),
        raw=message,
    )


def _finished(message: inference_pb2.GenerateFinished) -> Finished:
    return Finished(
        answer=message.answer,
        reason=finish_from_pb(message.reason),
        stop_match=message.stop_match or None,
        usage=Usage(
            prompt_tokens=message.usage.prompt_tokens,
            completion_tokens=message.usage.completion_tokens,
        ),
        report=_report(message.report) if message.HasField("report") else None,
        raw=message,
    )


def _report(message: inference_pb2.RequestReport) -> Report:
    return Report(
        ttft_s=message.ttft_seconds,
        tokens_per_s=message.tokens_per_second,
        phases_s=MappingProxyType({phase.phase: phase.seconds for phase in message.phases}),
        prompt_tokens=message.prompt_tokens,
        kept_tokens=message.kept_tokens,
        kv_bytes=message.kv_bytes,
        transport=message.transport,
        attended=message.attended,
        dense=message.dense,
        attended_ratio=message.attended_ratio,
        replayed_tokens=message.replayed_tokens,
        route=message.route,
        pages=pages_from_pb(message.pages) if message.HasField("pages") else None,
        trace=request_trace_from_pb(message.trace, ttft_s=message.ttft_seconds)
        if message.HasField("trace")
        else None,
    )
