"""Calls to decode workers."""

from collections.abc import AsyncGenerator

from gateway.clients.events import (
    DecodeAccepted,
    DecodeCall,
    DecodeEvent,
    DecodeFinished,
    Tokens,
)
from gateway.clients.failures import events_of, worker_errors
from gateway.clients.prefill import CONTROL_TIMEOUT_S
from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.errors import HandoffError, UnavailableError
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.stubs import Stubs
from shared.types.handoff import HandoffKey
from shared.types.sampling import FinishReason
from shared.wire.errors import error_from_pb
from shared.wire.identity import handoff_to_pb
from shared.wire.options import options_to_pb
from shared.wire.pages import pages_from_pb
from shared.wire.sampling import finish_from_pb, sampling_to_pb, stop_to_pb, token_from_pb
from shared.wire.trace import page_trace_from_pb


class DecodeClient:
    """The RPCs of DecodeService that a gateway makes; every failure is a TandemError."""

    def __init__(self, channels: ChannelPool) -> None:
        self._stubs: Stubs[decode_pb2_grpc.DecodeServiceAsyncStub] = Stubs(
            channels, decode_pb2_grpc.DecodeServiceStub
        )

    def decode(
        self, address: str, call: DecodeCall, *, timeout_s: float
    ) -> AsyncGenerator[DecodeEvent, None]:
        """Generates; closing the iterator cancels it.

        Raises:
            TandemError: the worker refused or failed, or the connection broke.
        """
        request, stub = _request(call, timeout_s), self._stubs.to(address)
        return events_of(
            lambda: stub.Decode(request, timeout=timeout_s, wait_for_ready=False), _event
        )

    async def cancel(self, address: str, handoff: HandoffKey) -> None:
        """Ends a generation within one step."""
        request = decode_pb2.DecodeServiceCancelRequest(handoff=handoff_to_pb(handoff))
        with worker_errors():
            await self._stubs.to(address).Cancel(request, timeout=CONTROL_TIMEOUT_S)

    async def abort(self, address: str, handoff: HandoffKey, *, reason: str) -> None:
        """Ends a handoff before its commit."""
        request = decode_pb2.AbortRequest(handoff=handoff_to_pb(handoff), reason=reason)
        with worker_errors():
            await self._stubs.to(address).Abort(request, timeout=CONTROL_TIMEOUT_S)


def _request(call: DecodeCall, timeout_s: float) -> decode_pb2.DecodeRequest:
    return decode_pb2.DecodeRequest(
        handoff=handoff_to_pb(call.handoff),
        branch=call.branch,
        first_token=call.first_token,
        sampling=sampling_to_pb(call.sampling),
        stop=stop_to_pb(call.stop),
        options=options_to_pb(call.options),
        grammar=call.grammar,
        earlier_tokens=call.earlier_tokens,
        deadline_ms=max(1, round(timeout_s * 1000)),
    )


def _event(message: decode_pb2.DecodeResponse) -> DecodeEvent | None:
    match message.WhichOneof("event"):
        case "accepted":
            return DecodeAccepted(message.accepted.worker_id)
        case "tokens":
            return Tokens(tuple(token_from_pb(token) for token in message.tokens.tokens))
        case "finished":
            return _finished(message.finished)
        case _:
            return None


def _finished(message: decode_pb2.DecodeFinished) -> DecodeFinished:
    reason = finish_from_pb(message.reason)
    if reason is FinishReason.ERROR:
        if message.HasField("error"):
            raise error_from_pb(message.error)
        raise HandoffError("the decode worker ended with an unnamed error: see its log")
    if reason is FinishReason.CANCELLED:
        raise UnavailableError(
            "the decode worker cancelled the answer: it drains or the handoff expired; "
            "send the request again",
            code="draining",
        )
    return DecodeFinished(
        reason=reason,
        stop_match=message.stop_match or None,
        attended=message.attended,
        dense=message.dense,
        phases_s={phase.phase: phase.seconds for phase in message.phases},
        pages=pages_from_pb(message.pages) if message.HasField("pages") else None,
        trace=page_trace_from_pb(message.trace) if message.HasField("trace") else None,
    )
