"""PrefillService: checks a request, hands it to the engine, passes the engine's events on."""

from __future__ import annotations  # grpc's generic types exist for the type checker only

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

from prefill_service.engine.engine import PrefillEngine
from prefill_service.engine.job import Failed, PrefillJob
from prefill_service.rpc.events import event_to_pb, sealed_to_pb
from prefill_service.rpc.prompt_spans import PromptSpans
from prefill_service.rpc.requests import ModelLimits, prompt_from_pb, targets_from_pb
from protos.tandem.v1 import prefill_pb2, prefill_pb2_grpc
from shared.errors import InvalidRequestError
from shared.grammar.compiler import GrammarCompiler
from shared.telemetry.logs import log_context
from shared.telemetry.spans import current_span
from shared.wire.identity import handoff_from_pb, handoff_to_pb

SERVICE_NAME = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
"""Full name, for health and reflection."""

Context = grpc.aio.ServicerContext[Any, Any]


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """The service; a stream that is closed early stops its prompt.

    Args:
        engine: owns the prompts.
        limits: what requests must fit.
        grammars: compiles what answers must conform to.
    """

    def __init__(
        self, engine: PrefillEngine, *, limits: ModelLimits, grammars: GrammarCompiler
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._grammars = grammars

    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        """Queues a prompt and streams its events; the last one is `sealed` or `failed`."""
        prompt = prompt_from_pb(request, limits=self._limits)
        if request.grammar:
            matcher = await self._grammars.compile(request.grammar)
            prompt = replace(prompt, matcher=matcher)
        prompt = prompt.within(context.time_remaining())  # a compilation took some of it
        with log_context(handoff_id=prompt.key.handoff_id):
            job = self._engine.submit(prompt)
        spans = PromptSpans(current_span())
        try:
            async for event in job.events():
                spans.take(event)
                yield event_to_pb(event)
        finally:
            self._leave(job)

    async def Renew(
        self, request: prefill_pb2.RenewRequest, _context: Context
    ) -> prefill_pb2.RenewResponse:
        """Prolongs holds; names of unknown ones come back."""
        unknown = self._engine.renew([handoff_from_pb(key) for key in request.handoffs])
        return prefill_pb2.RenewResponse(
            lease_ms=round(self._engine.lease_s * 1000),
            unknown=[handoff_to_pb(key) for key in unknown],
        )

    async def Resend(
        self, request: prefill_pb2.ResendRequest, context: Context
    ) -> prefill_pb2.ResendResponse:
        """Delivers held KV to another decode worker."""
        if request.new_attempt <= request.handoff.attempt:
            raise InvalidRequestError(
                f"new_attempt {request.new_attempt} is not above {request.handoff.attempt}: "
                "every delivery needs an attempt number of its own; count it up",
                param="new_attempt",
            )
        remaining = context.time_remaining()
        job = self._engine.resend(
            handoff_from_pb(request.handoff),
            new_attempt=request.new_attempt,
            targets=targets_from_pb(request.targets),
            deadline_s=remaining,
        )
        try:
            outcome = await job.wait_outcome()
        finally:
            self._leave(job)
        if isinstance(outcome, Failed):
            raise outcome.error
        return prefill_pb2.ResendResponse(sealed=sealed_to_pb(outcome))

    async def Release(
        self, request: prefill_pb2.ReleaseRequest, _context: Context
    ) -> prefill_pb2.ReleaseResponse:
        """Drops a hold."""
        released = self._engine.release(handoff_from_pb(request.handoff))
        return prefill_pb2.ReleaseResponse(released=released)

    async def Cancel(
        self, request: prefill_pb2.PrefillServiceCancelRequest, _context: Context
    ) -> prefill_pb2.PrefillServiceCancelResponse:
        """Stops a prompt in any phase."""
        cancelled = self._engine.cancel(handoff_from_pb(request.handoff))
        return prefill_pb2.PrefillServiceCancelResponse(cancelled=cancelled)

    def _leave(self, job: PrefillJob) -> None:
        """The caller listens no more. What is sealed stays: the caller may have heard of it."""
        if not job.done:
            self._engine.cancel(job.key, why="the stream of its events was closed")
