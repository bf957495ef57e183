"""DecodeService: protobuf in, worker calls, protobuf out. Errors are mapped by the interceptor."""

from collections.abc import AsyncIterator

import grpc.aio

from decode_service.engine.call import DecodeCall
from decode_service.engine.handoffs import Busy, ReserveSpec
from decode_service.engine.stream import Ending
from decode_service.engine.worker import DecodeWorker
from decode_service.rpc.answer_spans import AnswerSpans
from protos.tandem.v1 import common_pb2, decode_pb2, decode_pb2_grpc
from shared.errors import TandemError
from shared.telemetry.logs import log_context
from shared.telemetry.spans import current_span
from shared.types.page_summary import PageSummary
from shared.wire.errors import error_to_pb
from shared.wire.identity import handoff_from_pb, identity_from_pb
from shared.wire.manifest import manifest_from_pb, pruning_from_pb
from shared.wire.options import options_from_pb
from shared.wire.pages import pages_to_pb
from shared.wire.sampling import (
    branches_from_pb,
    finish_to_pb,
    sampling_from_pb,
    stop_from_pb,
    token_to_pb,
)
from shared.wire.trace import page_trace_to_pb

SERVICE_NAME = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name
"""Full name, for health and reflection."""

_Context = grpc.aio.ServicerContext[object, object]


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """The decode worker on the network.

    Args:
        worker: does the work.
        worker_id: name of this worker.
        incarnation: fresh for every process.
        transports: accepted transports, best first.
    """

    def __init__(
        self,
        worker: DecodeWorker,
        *,
        worker_id: str,
        incarnation: str,
        transports: tuple[str, ...],
    ) -> None:
        self._worker = worker
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._transports = transports

    async def Reserve(
        self, request: decode_pb2.ReserveRequest, _context: _Context
    ) -> decode_pb2.ReserveResponse:
        """Grants a landing slab and pages, or says busy."""
        answer = self._worker.reserve(_spec_from_pb(request))
        if isinstance(answer, Busy):
            return decode_pb2.ReserveResponse(
                busy=decode_pb2.DecodeBusy(
                    retry_after_ms=round(answer.retry_after_s * 1000), reason=answer.reason.value
                )
            )
        return decode_pb2.ReserveResponse(
            grant=decode_pb2.SlabGrant(
                slot=answer.lease.slot,
                generation=answer.lease.generation,
                lease_ms=self._worker.table.lease_ms(answer),
                transports=self._transports,
                incarnation=self._incarnation,
                token=answer.token,
            )
        )

    async def Commit(
        self, request: decode_pb2.CommitRequest, _context: _Context
    ) -> decode_pb2.CommitResponse:
        """Verifies a landed KV cache and adopts it; a refusal is an answer, not a failed call."""
        try:
            manifest = manifest_from_pb(request.manifest)
            with log_context(handoff_id=manifest.handoff.handoff_id):
                granted = await self._worker.commit(
                    manifest,
                    slot=request.slot,
                    generation=request.generation,
                    prompt_ids=tuple(request.prompt_token_ids),
                    token=request.token,
                )
        except TandemError as error:
            return decode_pb2.CommitResponse(rejected=error_to_pb(error))
        seconds = granted.adopted.seconds if granted.adopted is not None else 0.0
        return decode_pb2.CommitResponse(
            adopted=decode_pb2.Adopted(
                seconds=seconds, lease_ms=self._worker.table.lease_ms(granted)
            )
        )

    async def Decode(
        self, request: decode_pb2.DecodeRequest, _context: _Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Streams `accepted`, tokens, and `finished` exactly once.

        The server closes this generator when the client goes away, in whatever state it is.
        """
        generation = await self._worker.decode(_call_from_pb(request))
        try:
            yield decode_pb2.DecodeResponse(
                accepted=decode_pb2.DecodeAccepted(worker_id=self._worker_id)
            )
            spans = AnswerSpans(current_span())
            ending: Ending | None = None
            while ending is None:
                tokens, ending = await generation.stream.next()
                spans.take(len(tokens), ending)
                if tokens:
                    batch = decode_pb2.TokenBatch(tokens=[token_to_pb(t) for t in tokens])
                    yield decode_pb2.DecodeResponse(tokens=batch)
            yield decode_pb2.DecodeResponse(finished=_ending_to_pb(ending, generation.pages))
        finally:
            generation.cancel()

    async def Abort(
        self, request: decode_pb2.AbortRequest, _context: _Context
    ) -> decode_pb2.AbortResponse:
        """Ends a handoff."""
        key = handoff_from_pb(request.handoff)
        drained = self._worker.abort(key, reason=request.reason)
        return decode_pb2.AbortResponse(drained=drained)

    async def Cancel(
        self, request: decode_pb2.DecodeServiceCancelRequest, _context: _Context
    ) -> decode_pb2.DecodeServiceCancelResponse:
        """Ends a generation within one step."""
        cancelled = self._worker.cancel(handoff_from_pb(request.handoff))
        return decode_pb2.DecodeServiceCancelResponse(cancelled=cancelled)


def _spec_from_pb(request: decode_pb2.ReserveRequest) -> ReserveSpec:
    return ReserveSpec(
        handoff=handoff_from_pb(request.handoff),
        model=identity_from_pb(request.model),
        prompt_tokens=request.prompt_tokens,
        kept_tokens=request.kept_tokens,
        whole_layers=request.whole_layers,
        slab_bytes=request.slab_bytes,
        max_new_tokens=request.max_new_tokens,
        num_branches=branches_from_pb(request.num_branches),
        pruning=pruning_from_pb(request.pruning) if request.HasField("pruning") else None,
    )


def _call_from_pb(request: decode_pb2.DecodeRequest) -> DecodeCall:
    return DecodeCall(
        handoff=handoff_from_pb(request.handoff),
        first_token=request.first_token,
        sampling=sampling_from_pb(request.sampling),
        stop=stop_from_pb(request.stop),
        options=options_from_pb(request.options),
        grammar=request.grammar,
        branch=request.branch,
        earlier_tokens=tuple(request.earlier_tokens),
        deadline_s=request.deadline_ms / 1000 if request.deadline_ms else None,
    )


def _ending_to_pb(ending: Ending, pages: PageSummary) -> decode_pb2.DecodeFinished:
    return decode_pb2.DecodeFinished(
        reason=finish_to_pb(ending.reason),
        stop_match=ending.stop_match,
        generated_tokens=ending.generated_tokens,
        attended=ending.attended,
        dense=ending.dense,
        phases=[
            common_pb2.PhaseDuration(phase=phase, seconds=seconds)
            for phase, seconds in ending.phases
        ],
        error=None if ending.error is None else error_to_pb(ending.error),
        pages=pages_to_pb(pages),
        trace=None if ending.trace is None else page_trace_to_pb(ending.trace),
    )
