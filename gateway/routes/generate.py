"""POST /v1/chat/completions, /v1/completions and /v1/responses."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.config import GatewayConfig
from gateway.conversation import chat_conversation, response_conversation
from gateway.intake import Intake, Origin
from gateway.job import Event, GenerationJob
from gateway.observer import RequestObserver
from gateway.pipeline import Pipeline
from gateway.routes.body import parsed, read_body
from gateway.routes.choices import PreparedChoices
from gateway.routes.disconnect import unless_gone
from gateway.routes.failures import error_response, reply_to
from gateway.routes.json_response import json_response
from gateway.routes.names import REQUEST_ID_HEADER, origin_of
from gateway.routes.prepared import Prepared
from gateway.routes.response import PreparedResponse
from gateway.routes.stream import CLIENT_CLOSED, EventStream, StreamEnd
from gateway.schema.chat import ChatBody
from gateway.schema.completions import CompletionBody
from gateway.schema.generation import ChoicesBody
from gateway.schema.logprobs import chat_entries, no_entries
from gateway.schema.parse import parse_body
from gateway.schema.replies import (
    ChatFormat,
    CompletionFormat,
    Envelope,
    ReplyFormat,
    new_envelope,
)
from gateway.schema.response_events import ResponseWriter
from gateway.schema.response_object import ResponseObject
from gateway.schema.responses import ResponsesBody
from gateway.schema.tool_replies import ToolChatFormat
from gateway.schema.unknown import check_unknown
from shared.errors import CancelledError
from shared.telemetry.spans import child_scope
from shared.tokenizer.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"

MakeFormat = Callable[..., ReplyFormat]


class GenerateRoutes:
    """The generating endpoints.

    Args:
        intake: makes jobs.
        pipeline: answers them.
        config: limits and keep-alive.
        observer: told of every request.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        pipeline: Pipeline,
        config: GatewayConfig,
        observer: RequestObserver,
    ) -> None:
        self._intake = intake
        self._pipeline = pipeline
        self._config = config
        self._observer = observer

    async def chat(self, request: Request) -> Response:
        """A chat completion."""
        return await self._answer(request, origin_of(request, CHAT), self._prepare_chat)

    async def completions(self, request: Request) -> Response:
        """A plain completion."""
        origin = origin_of(request, COMPLETIONS)
        return await self._answer(request, origin, self._prepare_completion)

    async def responses(self, request: Request) -> Response:
        """A response, which is not stored."""
        origin = origin_of(request, RESPONSES)
        return await self._answer(request, origin, self._prepare_response)

    async def _answer(
        self,
        request: Request,
        origin: Origin,
        prepare: Callable[[bytes, Origin], Awaitable[Prepared]],
    ) -> Response:
        try:
            self._pipeline.refuse_if_full()
            raw = await read_body(request, limit=self._config.max_body_bytes)
            with child_scope("gateway.prepare"):
                prepared = await prepare(raw, origin)
            if prepared.streamed:
                return self._stream(prepared, origin)
            whole = prepared.whole(self._started(prepared))
            answer = await unless_gone(whole, request.receive)
        except (ClientDisconnect, CancelledError):
            self._account(origin, code=CLIENT_CLOSED, outcome="cancelled")
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:  # noqa: BLE001 - every failure is answered in the one error shape
            reply = reply_to(error)
            self._account(origin, code=reply.status, outcome="error", refused=reply.body)
            return error_response(reply, request_id=origin.request_id)
        self._account(origin, code=200, outcome="ok")
        headers = {**prepared.headers, REQUEST_ID_HEADER: origin.request_id}
        return json_response(answer, headers=headers)

    async def _prepare_chat(self, raw: bytes, origin: Origin) -> PreparedChoices:
        body = await parsed(raw, partial(parse_body, cls=ChatBody))
        headers = check_unknown(body, strict=self._config.strict_params)
        job = await self._intake.conversation_job(chat_conversation(body), origin)
        reading = job.plan.reading
        make = ChatFormat if reading is None else partial(ToolChatFormat, reading=reading)
        return self._prepared([job], body, headers, make=make, prefix="chatcmpl-")

    async def _prepare_completion(self, raw: bytes, origin: Origin) -> PreparedChoices:
        body = await parsed(raw, partial(parse_body, cls=CompletionBody))
        headers = check_unknown(body, strict=self._config.strict_params)
        jobs = await self._intake.completion_jobs(body, origin)
        return self._prepared(jobs, body, headers, make=CompletionFormat, prefix="cmpl-")

    async def _prepare_response(self, raw: bytes, origin: Origin) -> PreparedResponse:
        body = await parsed(raw, partial(parse_body, cls=ResponsesBody))
        headers = check_unknown(body, strict=self._config.strict_params)
        job = await self._intake.conversation_job(response_conversation(body), origin)
        envelope = self._envelope(job, prefix="resp_")
        writer = ResponseWriter(
            ResponseObject(envelope=envelope, body=body, job=job),
            reading=job.plan.reading,
            logprobs=partial(chat_entries, tokenizer=self._intake.tokenizer)
            if body.top_logprob_count() is not None
            else no_entries,
        )
        return PreparedResponse(
            jobs=[job], streamed=bool(body.stream), writer=writer, headers=headers
        )

    def _envelope(self, job: GenerationJob, *, prefix: str) -> Envelope:
        fingerprint = self._intake.fingerprint(job.options)
        return new_envelope(prefix, model=job.model, fingerprint=fingerprint)

    def _prepared(
        self,
        jobs: Sequence[GenerationJob],
        body: ChoicesBody,
        headers: dict[str, str],
        *,
        make: MakeFormat,
        prefix: str,
    ) -> PreparedChoices:
        envelope = self._envelope(jobs[0], prefix=prefix)
        tokenizer: Tokenizer = self._intake.tokenizer
        reply = make(envelope, body=body, tokenizer=tokenizer)
        return PreparedChoices(jobs=jobs, body=body, format=reply, headers=headers)

    def _stream(self, prepared: Prepared, origin: Origin) -> EventStream:
        def ended(end: StreamEnd) -> None:
            if end.status == CLIENT_CLOSED:
                self._account(origin, code=CLIENT_CLOSED, outcome="cancelled")
            elif end.error is None:
                self._account(origin, code=200, outcome="ok")
            else:
                refused = end.error.body if end.status != 200 else None  # noqa: PLR2004 - HTTP
                self._account(origin, code=end.status, outcome="error", refused=refused)

        return EventStream(
            prepared.frames(self._started(prepared)),
            request_id=origin.request_id,
            keepalive_s=self._config.keepalive_s,
            headers=prepared.headers,
            on_end=ended,
            failure=prepared.failure,
        )

    def _started(self, prepared: Prepared) -> list[AsyncGenerator[Event, None]]:
        return [self._pipeline.generate(job) for job in prepared.jobs]

    def _account(
        self,
        origin: Origin,
        *,
        code: int,
        outcome: str,
        refused: dict[str, Any] | None = None,
    ) -> None:
        seconds = time.monotonic() - origin.arrived
        self._observer.answered(
            endpoint=origin.endpoint, code=str(code), outcome=outcome, seconds=seconds
        )
        if refused is not None:
            self._observer.rejected(refused["error"]["code"])
