"""Events of a Generate call as messages; tool calls are read out of the text."""

from collections.abc import Iterator, Sequence

from gateway.job import Event, Finished, GenerationJob, RequestReport, TextDelta
from gateway.tools.events import ArgumentsPiece, CallEvent, CallStarted, ContentPiece
from gateway.tools.parser import ToolCallParser
from gateway.tools.reading import CallReading
from protos.tandem.v1 import common_pb2, inference_pb2
from shared.types.sampling import FinishReason, SampledToken
from shared.wire.pages import pages_to_pb
from shared.wire.sampling import finish_to_pb, token_to_pb
from shared.wire.trace import request_trace_to_pb


class Responses:
    """Messages of one call.

    Args:
        reading: how calls are found; None: the text is content.
    """

    def __init__(self, reading: CallReading | None) -> None:
        self._reading = reading
        self._parsers: dict[int, ToolCallParser] = {}

    def accepted(self, job: GenerationJob) -> inference_pb2.GenerateResponse:
        """The first one."""
        return inference_pb2.GenerateResponse(
            accepted=inference_pb2.GenerateAccepted(
                request_id=job.request_id, prompt_tokens=len(job.prompt_ids)
            )
        )

    def of(self, event: Event) -> Iterator[inference_pb2.GenerateResponse]:
        """What an event is told as: what calls held back comes before the end of its answer."""
        parser = self._parser(event.branch)
        if isinstance(event, TextDelta):
            found = [ContentPiece(event.text)] if parser is None else parser.push(event.text)
            yield _delta(event.branch, event.tokens, found)
            return
        rest = [] if parser is None else parser.finish()
        if rest:
            yield _delta(event.branch, (), rest)
        called = event.reason is FinishReason.STOP and parser is not None and parser.complete
        reason = FinishReason.TOOL_CALLS if called else event.reason
        yield inference_pb2.GenerateResponse(finished=_finished(event, reason))

    def _parser(self, branch: int) -> ToolCallParser | None:
        if self._reading is None:
            return None
        if branch not in self._parsers:
            self._parsers[branch] = self._reading.parser()
        return self._parsers[branch]


def _delta(
    branch: int, tokens: Sequence[SampledToken], found: Sequence[CallEvent]
) -> inference_pb2.GenerateResponse:
    calls: dict[int, inference_pb2.ToolCallDelta] = {}
    for event in found:
        if isinstance(event, CallStarted):
            calls[event.index] = inference_pb2.ToolCallDelta(
                index=event.index, id=event.call_id, name=event.name
            )
        elif isinstance(event, ArgumentsPiece):
            part = calls.setdefault(event.index, inference_pb2.ToolCallDelta(index=event.index))
            part.arguments += event.text
    delta = inference_pb2.GenerateDelta(
        tokens=[token_to_pb(token) for token in tokens],
        text="".join(event.text for event in found if isinstance(event, ContentPiece)),
        answer=branch,
        tool_calls=calls.values(),
    )
    return inference_pb2.GenerateResponse(delta=delta)


def _finished(event: Finished, reason: FinishReason) -> inference_pb2.GenerateFinished:
    return inference_pb2.GenerateFinished(
        reason=finish_to_pb(reason),
        stop_match=event.stop_match or "",
        usage=inference_pb2.Usage(
            prompt_tokens=event.prompt_tokens, completion_tokens=event.completion_tokens
        ),
        report=_report(event.report) if event.last else None,
        answer=event.branch,
    )


def _report(report: RequestReport) -> inference_pb2.RequestReport:
    return inference_pb2.RequestReport(
        ttft_seconds=report.ttft_s,
        tokens_per_second=report.tokens_per_s,
        phases=[
            common_pb2.PhaseDuration(phase=phase, seconds=seconds)
            for phase, seconds in report.phases_s.items()
        ],
        prompt_tokens=report.prompt_tokens,
        kept_tokens=report.kept_tokens,
        kv_bytes=report.kv_bytes,
        transport=report.transport,
        attended=report.attended,
        dense=report.dense,
        replayed_tokens=report.replayed_tokens,
        route=report.route,
        pages=None if report.pages is None else pages_to_pb(report.pages),
        attended_ratio=report.attended_ratio,
        trace=request_trace_to_pb(report.trace()) if report.traced else None,
    )
