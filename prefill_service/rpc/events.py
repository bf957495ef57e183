"""Engine events as messages of the Prefill stream."""

from prefill_service.engine.job import (
    Accepted,
    Event,
    Failed,
    FirstTokens,
    Progress,
    Sealed,
    Started,
    Target,
)
from protos.tandem.v1 import common_pb2, prefill_pb2
from shared.wire.errors import error_to_pb
from shared.wire.manifest import pruning_to_pb
from shared.wire.sampling import token_to_pb
from shared.wire.trace import prompt_trace_to_pb


def event_to_pb(event: Event) -> prefill_pb2.PrefillResponse:
    """Converts one event."""
    match event:
        case Accepted():
            accepted = prefill_pb2.PrefillAccepted(queued_tokens=event.queued_tokens)
            return prefill_pb2.PrefillResponse(accepted=accepted)
        case Started():
            started = prefill_pb2.PrefillStarted(
                queue_seconds=event.queue_seconds, pruning=pruning_to_pb(event.pruning)
            )
            return prefill_pb2.PrefillResponse(started=started)
        case Progress():
            progress = prefill_pb2.PrefillProgress(
                done_tokens=event.done_tokens, total_tokens=event.total_tokens
            )
            return prefill_pb2.PrefillResponse(progress=progress)
        case FirstTokens():
            tokens = prefill_pb2.FirstTokens(
                tokens=[token_to_pb(t) for t in event.tokens],
                target=None if event.target is None else _target_to_pb(event.target),
            )
            return prefill_pb2.PrefillResponse(first_tokens=tokens)
        case Sealed():
            return prefill_pb2.PrefillResponse(sealed=sealed_to_pb(event))
        case Failed():
            return prefill_pb2.PrefillResponse(failed=error_to_pb(event.error))


def sealed_to_pb(sealed: Sealed) -> prefill_pb2.PrefillSealed:
    """Converts a successful end."""
    return prefill_pb2.PrefillSealed(
        target=_target_to_pb(sealed.target),
        kv_bytes=sealed.kv_bytes,
        transport=sealed.transport,
        kept_tokens=sealed.kept_tokens,
        phases=[
            common_pb2.PhaseDuration(phase=phase, seconds=seconds)
            for phase, seconds in sealed.phases
        ],
        lease_ms=round(sealed.lease_s * 1000),
        trace=None if sealed.trace is None else prompt_trace_to_pb(sealed.trace),
    )


def _target_to_pb(target: Target) -> prefill_pb2.DecodeTarget:
    return prefill_pb2.DecodeTarget(worker_id=target.worker_id, address=target.address)
