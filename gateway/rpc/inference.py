"""InferenceService: the pipeline for users of generated stubs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import grpc.aio

from gateway.answer_plan import AnswerPlan
from gateway.intake import Intake, Origin, PromptInput, new_origin
from gateway.job import GenerationJob
from gateway.observer import RequestObserver
from gateway.pipeline import Pipeline
from gateway.prompt_parts import AskedParts, refuse_parts
from gateway.rpc.asked_answer import asked_answer
from gateway.rpc.conversation import turns_of
from gateway.rpc.responses import Responses
from gateway.schema.translate import check_token_id, draw_seed, fit_context
from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import InternalError, InvalidRequestError, TandemError
from shared.rpc.interceptors import current_request_id
from shared.rpc.status import NEUTRAL_MESSAGE, grpc_code
from shared.telemetry.spans import child_scope
from shared.types.options import PromptPart
from shared.types.sampling import SamplingParams, StopConditions
from shared.wire.options import options_from_pb
from shared.wire.sampling import sampling_from_pb, stop_from_pb
from shared.wire.token_ids import ids_from_pb

SERVICE_NAME = "tandem.v1.InferenceService"

_PARTS = {
    inference_pb2.PROMPT_PART_SYSTEM: PromptPart.SYSTEM,
    inference_pb2.PROMPT_PART_LAST_USER: PromptPart.LAST_USER,
    inference_pb2.PROMPT_PART_QUESTION: PromptPart.QUESTION,
}
_ENDPOINT = "Generate"
_MAX_ID = 100
_READ_AT_ONCE_BYTES = 64 * 1024

T = TypeVar("T")


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Same pipeline, limits and errors as REST.

    Args:
        intake: model name, chat template, limits.
        pipeline: answers jobs.
        observer: told of every request.
    """

    def __init__(self, intake: Intake, *, pipeline: Pipeline, observer: RequestObserver) -> None:
        self._intake = intake
        self._pipeline = pipeline
        self._observer = observer

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)

    async def Generate(
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams accepted, deltas, a finished for each answer; errors have ErrorInfo."""
        origin = new_origin(current_request_id()[:_MAX_ID], _ENDPOINT)
        code, outcome, told = "CANCELLED", "cancelled", False
        try:
            self._pipeline.refuse_if_full()
            remaining_s = context.time_remaining()
            with child_scope("gateway.prepare"):
                job = _until(await self._job(request, origin), origin, remaining_s)
            responses = Responses(job.plan.reading)
            yield responses.accepted(job)
            async with aclosing(self._pipeline.generate(job)) as events:
                async for event in events:
                    told = True
                    for response in responses.of(event):
                        yield response
            code, outcome = "OK", "ok"
        except Exception as exception:
            error: TandemError = InternalError(NEUTRAL_MESSAGE)
            if isinstance(exception, TandemError):
                error = exception
            code, outcome = grpc_code(error).name, "error"
            if not told:
                self._observer.rejected(error.error_code)
            raise
        finally:
            self._observer.answered(
                endpoint=_ENDPOINT,
                code=code,
                outcome=outcome,
                seconds=time.monotonic() - origin.arrived,
            )

    async def _job(self, request: inference_pb2.GenerateRequest, origin: Origin) -> GenerationJob:
        model = self._intake.check_model(request.model)
        if request.WhichOneof("prompt") == "conversation":
            self._intake.refuse_too_many(len(request.conversation.messages))
        plan = await self._intake.planner.plan(await _read(request, asked_answer))
        prompt, param = await self._prompt(request, plan)
        ids = prompt.ids
        vocab = self._intake.tokenizer.vocab_size
        max_tokens = fit_context(
            prompt_tokens=len(ids),
            asked=request.stop.max_tokens or None,
            limit=self._intake.max_model_len(),
            param=param,
        )
        sampling = _sampling(request, vocab_size=vocab)
        return GenerationJob(
            request_id=origin.request_id,
            endpoint=origin.endpoint,
            model=model,
            prompt_ids=ids,
            sampling=sampling,
            stop=self._stop(request, max_tokens),
            branches=self._intake.checked_choices(request.num_answers or 1, param="num_answers"),
            options=prompt.options,
            plan=plan,
            arrived=origin.arrived,
            deadline=self._intake.deadline(origin.arrived),
        )

    async def _prompt(
        self, request: inference_pb2.GenerateRequest, plan: AnswerPlan
    ) -> tuple[PromptInput, str]:
        options, asked = options_from_pb(request.options), _asked(request)
        match request.WhichOneof("prompt"):
            case "token_ids" if request.token_ids.ids or request.token_ids.packed:
                refuse_parts(asked)
                asked_ids = ids_from_pb(
                    request.token_ids.ids, request.token_ids.packed, param="token_ids"
                )
                checked = self._intake.checked_ids(asked_ids, param="token_ids")
                return PromptInput(ids=checked, options=options), "token_ids"
            case "text" if request.text:
                refuse_parts(asked)
                ids = await self._intake.encode_text(request.text, param="text")
                return PromptInput(ids=ids, options=options), "text"
            case "conversation" if request.conversation.messages:
                turns = await _read(request, lambda given: turns_of(given.conversation))
                prompt = await self._intake.encode_chat(
                    turns, plan.variables(), options=options, asked=asked
                )
                return prompt, "conversation"
            case given:
                what = f"{given} is empty" if given else "the prompt is missing"
                raise InvalidRequestError(
                    f"{what}; send token_ids, text or a conversation with at least one message",
                    code="missing_required_parameter",
                    param=given or "prompt",
                )

    def _stop(self, request: inference_pb2.GenerateRequest, max_tokens: int) -> StopConditions:
        message = common_pb2.StopConditions()
        message.CopyFrom(request.stop)
        message.max_tokens = max_tokens
        stop = stop_from_pb(message)
        for token_id in stop.token_ids:
            check_token_id(
                token_id, vocab_size=self._intake.tokenizer.vocab_size, param="stop.token_ids"
            )
        if request.ignore_eos:
            return stop
        ids = set(stop.token_ids) | set(self._intake.tokenizer.eos_ids)
        return replace(stop, token_ids=tuple(sorted(ids)))


async def _read(
    request: inference_pb2.GenerateRequest, read: Callable[[inference_pb2.GenerateRequest], T]
) -> T:
    """What `read` makes of a request; of a large one beside the loop, for its JSON takes long."""
    if request.ByteSize() <= _READ_AT_ONCE_BYTES:
        return read(request)
    return await asyncio.to_thread(read, request)


def _asked(request: inference_pb2.GenerateRequest) -> AskedParts:
    for part in request.protect_parts:
        if part not in _PARTS:
            raise InvalidRequestError(
                f"protect_parts holds {part}, which names no part; use a value of PromptPart",
                param="protect_parts",
            )
    if request.question_window and request.options.HasField("observation_window"):
        raise InvalidRequestError(
            "question_window and options.observation_window were both sent; leave one out",
            param="question_window",
        )
    return AskedParts(
        protect=tuple(_PARTS[part] for part in request.protect_parts),
        question_window=request.question_window,
    )


def _sampling(request: inference_pb2.GenerateRequest, *, vocab_size: int) -> SamplingParams:
    """Seed 0 is an unset seed: one is drawn, as REST does for an absent one."""
    if not request.HasField("sampling"):
        return SamplingParams(seed=draw_seed())
    params = sampling_from_pb(request.sampling)
    for token_id, _ in params.logit_bias:
        check_token_id(token_id, vocab_size=vocab_size, param="logit_bias")
    return params if params.seed else replace(params, seed=draw_seed())


def _until(job: GenerationJob, origin: Origin, remaining_s: float | None) -> GenerationJob:
    """The job with the call's own deadline, when that is earlier."""
    if remaining_s is None:
        return job
    return replace(job, deadline=min(job.deadline, origin.arrived + remaining_s))
