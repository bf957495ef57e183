"""Calls to decode workers; the engine's `DecodePeer`."""

from __future__ import annotations  # the async stub exists for the type checker only

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from prefill_service.engine.job import Target
from prefill_service.engine.sender import Busy, ReserveTerms
from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.discovery.address_guard import AddressGuard
from shared.errors import HandoffError, UnavailableError
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.status import error_from_rpc
from shared.rpc.stubs import Stubs
from shared.rpc.tls import PeerTls
from shared.transport import loopback
from shared.transport.base import Grant
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import KvManifest
from shared.types.model_identity import ModelIdentity
from shared.wire.errors import error_from_pb
from shared.wire.identity import handoff_to_pb, identity_to_pb
from shared.wire.manifest import manifest_to_pb, pruning_to_pb

if TYPE_CHECKING:
    from protos.tandem.v1.decode_pb2_grpc import DecodeServiceAsyncStub

MAX_CHANNELS = 256
"""Decode workers whose connections are kept; the one unused longest goes first."""

ABORT_SECONDS = 2.0
"""Longest wait for an abort: the next delivery waits for it, and leases end what a peer missed."""

T = TypeVar("T")


class DecodeClient:
    """Reserve, Commit and Abort on any decode worker, over one channel each.

    Args:
        model: this worker's model, which the other side compares with its own.
        timeout_s: longest seconds of one call.
        tls: mutual TLS with the decode workers; plain text without.
        guard: decides which addresses are connected to; None believes every target.
    """

    def __init__(
        self,
        *,
        model: ModelIdentity,
        timeout_s: float,
        tls: PeerTls | None = None,
        guard: AddressGuard | None = None,
    ) -> None:
        self._model = model
        self._timeout_s = timeout_s
        self._guard = guard
        self._channels = ChannelPool(tls=tls, max_channels=MAX_CHANNELS)
        self._stubs: Stubs[DecodeServiceAsyncStub] = Stubs(
            self._channels, decode_pb2_grpc.DecodeServiceStub
        )

    async def reserve(
        self, target: Target, *, key: HandoffKey, terms: ReserveTerms
    ) -> Grant | Busy:
        """Asks for room.

        Raises:
            TandemError: the worker refuses the handoff or cannot be reached.
        """
        request = decode_pb2.ReserveRequest(
            handoff=handoff_to_pb(key),
            model=identity_to_pb(self._model),
            prompt_tokens=terms.prompt_tokens,
            kept_tokens=terms.kept_tokens,
            whole_layers=terms.whole_layers,
            slab_bytes=terms.slab_bytes,
            max_new_tokens=terms.max_new_tokens,
            num_branches=terms.num_branches,
            pruning=None if terms.pruning is None else pruning_to_pb(terms.pruning),
        )
        stub = await self._stub(target.address)
        answer = await _translated(stub.Reserve(request, timeout=self._timeout_s))
        if answer.HasField("busy"):
            return Busy(answer.busy.retry_after_ms / 1000, answer.busy.reason)
        if not answer.HasField("grant"):
            raise _unanswered("Reserve", target)
        grant = answer.grant
        return Grant(
            slot=grant.slot,
            generation=grant.generation,
            lease_ms=grant.lease_ms,
            transports=tuple(grant.transports),
            incarnation=grant.incarnation,
            token=grant.token,
        )

    async def commit(
        self,
        target: Target,
        *,
        manifest: KvManifest,
        grant: Grant,
        prompt_token_ids: Sequence[int],
    ) -> None:
        """Hands a landed cache over, or one that lands yet, where its sums follow.

        Raises:
            TandemError: it was refused, or the worker cannot be reached.
        """
        request = decode_pb2.CommitRequest(
            manifest=manifest_to_pb(manifest),
            slot=grant.slot,
            generation=grant.generation,
            prompt_token_ids=prompt_token_ids,
            token=grant.token,
        )
        stub = await self._stub(target.address)
        # Said ahead, it is answered when the prompt is computed: its lease is the bound.
        timeout_s = None if manifest.sums_follow else self._timeout_s
        answer = await _translated(stub.Commit(request, timeout=timeout_s))
        if answer.HasField("rejected"):
            raise error_from_pb(answer.rejected)
        if not answer.HasField("adopted"):
            raise _unanswered("Commit", target)

    async def abort(self, target: Target, *, key: HandoffKey, reason: str) -> bool:
        """Ends a handoff; True when no write can be outstanding.

        Raises:
            TandemError: the worker cannot be reached; its own lease ends the handoff then.
        """
        request = decode_pb2.AbortRequest(handoff=handoff_to_pb(key), reason=reason)
        stub = await self._stub(target.address)
        seconds = min(self._timeout_s, ABORT_SECONDS)
        answer = await _translated(stub.Abort(request, timeout=seconds))
        return answer.drained

    async def close(self) -> None:
        """Closes every channel."""
        await self._channels.close()

    async def _stub(self, address: str) -> DecodeServiceAsyncStub:
        if self._guard is not None:
            await self._guard.check(address)
        return self._stubs.to(address)


class SameProcessClient(DecodeClient):
    """Calls to the decode worker of this very process, whose slab needs no wire to be reached."""

    async def reserve(
        self, target: Target, *, key: HandoffKey, terms: ReserveTerms
    ) -> Grant | Busy:
        """See `DecodeClient.reserve`; no grant names `loopback`, which is nobody else's to use."""
        answer = await super().reserve(target, key=key, terms=terms)
        if isinstance(answer, Busy):
            return answer
        return replace(answer, transports=(loopback.NAME, *answer.transports))


async def _translated(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    except asyncio.CancelledError:
        # grpc says so too when the channel was closed here and nobody cancelled this task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError(
            "the connection to a decode worker was closed here during a call: this worker is "
            "stopping or talks to very many; start a new attempt"
        ) from None


def _unanswered(call: str, target: Target) -> HandoffError:
    return HandoffError(
        f"decode worker {target.worker_id} answered {call} with nothing this version knows: "
        "the workers run different versions; upgrade the older one"
    )
