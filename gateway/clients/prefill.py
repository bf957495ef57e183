"""Calls to prefill workers."""

from collections.abc import AsyncGenerator, Sequence

from gateway.clients.events import (
    FirstTokens,
    PrefillCall,
    PrefillEvent,
    PrefillStarted,
    Sealed,
    Target,
)
from gateway.clients.failures import events_of, worker_errors
from protos.tandem.v1 import prefill_pb2, prefill_pb2_grpc
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.stubs import Stubs
from shared.types.handoff import HandoffKey
from shared.types.token_ids import ids_to_bytes
from shared.wire.errors import error_from_pb
from shared.wire.identity import handoff_to_pb
from shared.wire.options import options_to_pb
from shared.wire.sampling import sampling_to_pb, stop_to_pb, token_from_pb
from shared.wire.trace import prompt_trace_from_pb

CONTROL_TIMEOUT_S = 5.0


class PrefillClient:
    """All RPCs of PrefillService; every failure is a TandemError."""

    def __init__(self, channels: ChannelPool) -> None:
        self._stubs: Stubs[prefill_pb2_grpc.PrefillServiceAsyncStub] = Stubs(
            channels, prefill_pb2_grpc.PrefillServiceStub
        )

    def prefill(
        self, address: str, call: PrefillCall, *, timeout_s: float
    ) -> AsyncGenerator[PrefillEvent, None]:
        """Runs a prompt; closing the iterator cancels it.

        Raises:
            TandemError: the worker refused or failed, or the connection broke.
        """
        request, stub = _request(call, timeout_s), self._stubs.to(address)
        return events_of(
            lambda: stub.Prefill(request, timeout=timeout_s, wait_for_ready=False), _event
        )

    async def resend(
        self,
        address: str,
        handoff: HandoffKey,
        *,
        new_attempt: int,
        targets: Sequence[Target],
        timeout_s: float,
    ) -> Sealed:
        """Delivers sealed KV to another decode worker.

        Raises:
            TandemError: nothing is held any more, or no target took it.
        """
        request = prefill_pb2.ResendRequest(
            handoff=handoff_to_pb(handoff), new_attempt=new_attempt, targets=_targets(targets)
        )
        with worker_errors():
            response = await self._stubs.to(address).Resend(request, timeout=timeout_s)
        return _sealed(response.sealed)

    async def renew(self, address: str, handoff: HandoffKey) -> float:
        """Prolongs the hold; returns the remaining seconds, 0 when nothing is held."""
        request = prefill_pb2.RenewRequest(handoffs=[handoff_to_pb(handoff)])
        with worker_errors():
            response = await self._stubs.to(address).Renew(request, timeout=CONTROL_TIMEOUT_S)
        return 0.0 if response.unknown else response.lease_ms / 1000

    async def release(self, address: str, handoff: HandoffKey) -> None:
        """Drops sealed KV."""
        request = prefill_pb2.ReleaseRequest(handoff=handoff_to_pb(handoff))
        with worker_errors():
            await self._stubs.to(address).Release(request, timeout=CONTROL_TIMEOUT_S)

    async def cancel(self, address: str, handoff: HandoffKey) -> None:
        """Stops a prompt in any phase."""
        request = prefill_pb2.PrefillServiceCancelRequest(handoff=handoff_to_pb(handoff))
        with worker_errors():
            await self._stubs.to(address).Cancel(request, timeout=CONTROL_TIMEOUT_S)


def _request(call: PrefillCall, timeout_s: float) -> prefill_pb2.PrefillRequest:
    return prefill_pb2.PrefillRequest(
        handoff=handoff_to_pb(call.handoff),
        packed_token_ids=ids_to_bytes(call.token_ids),
        sampling=sampling_to_pb(call.sampling),
        stop=stop_to_pb(call.stop),
        options=options_to_pb(call.options),
        grammar=call.grammar,
        targets=_targets(call.targets),
        deadline_ms=max(1, round(timeout_s * 1000)),
        forced_first_tokens=call.forced_first_tokens,
        num_branches=call.branches,
        earlier_tokens=call.earlier_tokens,
    )


def _targets(targets: Sequence[Target]) -> list[prefill_pb2.DecodeTarget]:
    return [prefill_pb2.DecodeTarget(worker_id=t.worker_id, address=t.address) for t in targets]


def _event(message: prefill_pb2.PrefillResponse) -> PrefillEvent | None:
    match message.WhichOneof("event"):
        case "started":
            pruning = message.started.pruning
            return PrefillStarted(
                queue_seconds=message.started.queue_seconds,
                kept_tokens=pruning.kept_tokens,
                pruned=pruning.pruned,
                pruning_reason=pruning.reason,
            )
        case "first_tokens":
            return _first_tokens(message.first_tokens)
        case "sealed":
            return _sealed(message.sealed)
        case "failed":
            raise error_from_pb(message.failed)
        case _:
            return None


def _first_tokens(message: prefill_pb2.FirstTokens) -> FirstTokens:
    return FirstTokens(
        tuple(token_from_pb(t) for t in message.tokens),
        target=_target(message.target) if message.HasField("target") else None,
    )


def _target(message: prefill_pb2.DecodeTarget) -> Target:
    return Target(message.worker_id, message.address)


def _sealed(message: prefill_pb2.PrefillSealed) -> Sealed:
    return Sealed(
        target=_target(message.target),
        kv_bytes=message.kv_bytes,
        transport=message.transport,
        kept_tokens=message.kept_tokens,
        phases_s={phase.phase: phase.seconds for phase in message.phases},
        lease_s=message.lease_ms / 1000,
        trace=prompt_trace_from_pb(message.trace) if message.HasField("trace") else None,
    )
