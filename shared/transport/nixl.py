"""The NIXL transport: chunks are written straight into the decode worker's slab.

Memory that was registered is read where it is, a device's whole segments at a time; other bytes of
the host are staged chunk by chunk. They go by NVIDIA's NIXL (CUDA IPC, the kernel's copy from one
process to another, TCP, RDMA); a gRPC stream beside them, the lane, says where the lease lies,
renews it and counts what landed. The receiver cannot refuse a write that is on its way, so this
side stops by itself: it writes only inside the lease, only while it knows the lease to be alive,
and tells when nothing is under way any more.
"""

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass

import grpc
import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.errors import TransportError
from shared.kv.memory import HostMemory
from shared.rpc.channel_pool import ChannelPool
from shared.transport.base import (
    DEFAULT_CREDITS,
    Grant,
    TransportContext,
)
from shared.transport.greeting import CONNECT_SECONDS, say_hello, token_metadata, transfer_error
from shared.transport.hello import Peer
from shared.transport.nixl_agent import NixlAgent
from shared.transport.nixl_sender import LaneCall, NixlSender, OpenLane
from shared.transport.nixl_wire import NAME
from shared.types.kv_manifest import SegmentCheck

STAGED_CHUNKS = DEFAULT_CREDITS
"""Chunks of registered memory that bytes are sent from which lie elsewhere on the host."""

_ATTACH_METHOD = "/tandem.v1.TransferService/Attach"

_LANE_METHOD = "/tandem.v1.TransferService/Lane"


@dataclass(frozen=True, slots=True)
class _Attached:
    incarnation: str
    peer: str


class NixlTransport:
    """Senders that write into decode workers' slabs.

    Args:
        context: this side.

    Raises:
        ConfigError: the library is not there, or does not work here; its code says which.
    """

    name = NAME

    def __init__(self, context: TransportContext) -> None:
        self.chunk_bytes = context.chunk_bytes
        self._own = Peer(model=context.model, incarnation=context.incarnation)
        self._channels = ChannelPool(tls=context.tls, own_connection=True)
        memory = context.memory
        allocate = HostMemory if memory is None else memory.beside
        self.agent = NixlAgent(
            f"sender-{uuid.uuid4().hex}",
            allocate(STAGED_CHUNKS * self.chunk_bytes),
            slot_bytes=self.chunk_bytes,
            readable=() if memory is None else (memory,),
            reads=context.reads,
        )
        self._attached: dict[str, _Attached] = {}
        self._attaching = asyncio.Lock()
        self._watches: dict[str, asyncio.Task[None]] = {}

    @property
    def check(self) -> SegmentCheck:
        """See `KvTransport.check`."""
        return self.agent.check

    def sender(self) -> NixlSender:
        """A sender for one handoff."""
        return NixlSender(self, agent=self.agent, chunk_bytes=self.chunk_bytes)

    async def close(self) -> None:
        """Waits for writes under way and drops all connections; senders still open fail."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await self._channels.close()
        await self.agent.close()

    async def open_lane(self, address: str, grant: Grant) -> OpenLane:
        """Opens a lane; greets a decode worker and attaches to it first, when it is new.

        Raises:
            StaleWriteError: the grant is not (any more) ours.
            TransportError: unreachable, restarted since the grant, or another model or version.
        """
        channel = self._channels.get(address)
        # One at a time: two attachments of one peer would name it twice.
        async with self._attaching:
            peer = await self._peer(channel, address, grant)
        method: grpc.aio.StreamStreamMultiCallable[
            transfer_pb2.LaneRequest, transfer_pb2.LaneResponse
        ] = channel.stream_stream(
            _LANE_METHOD,
            request_serializer=transfer_pb2.LaneRequest.SerializeToString,
            response_deserializer=transfer_pb2.LaneResponse.FromString,
        )
        call: LaneCall = method(metadata=token_metadata(grant))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                terms = await _opened(call, grant)
        except grpc.aio.AioRpcError as error:
            raise transfer_error(error, address) from error
        except TimeoutError:
            raise TransportError(
                f"{address} did not open a lane in {CONNECT_SECONDS:g} s: it hangs; "
                "start a new attempt on another worker"
            ) from None
        except BaseException:
            call.cancel()
            raise
        return OpenLane(call=call, peer=peer, terms=terms)

    async def lost(self, address: str) -> None:
        """Forgets a worker that a write failed to; the next lane attaches anew."""
        watch = self._watches.pop(address, None)
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()
        attached = self._attached.pop(address, None)
        if attached is not None:
            await self.agent.forget(attached.peer)

    def _check_fingerprint(self, hello: transfer_pb2.HelloResponse, address: str) -> None:
        offered = {offer.name: offer.fingerprint for offer in hello.direct}
        if NAME not in offered:
            raise TransportError(
                f"{address} does not take {NAME} writes: it was started without that transport; "
                "choose grpc, or enable it there"
            )
        if offered[NAME] != self.agent.fingerprint:
            raise TransportError(
                f"{address} has another fingerprint of {NAME}: the workers run other versions of "
                "it, or register another kind of memory; install the same version on both"
            )

    async def _peer(self, channel: grpc.aio.Channel, address: str, grant: Grant) -> str:
        """Name of the receiver's agent; who gave the grant need not be asked twice who it is."""
        known = self._attached.get(address)
        if known is not None and known.incarnation == grant.incarnation:
            return known.peer
        hello = await say_hello(channel, address=address, own=self._own, grant=grant)
        self._check_fingerprint(hello, address)
        if known is not None and known.incarnation == hello.incarnation:
            return known.peer
        await self.lost(address)
        attach = channel.unary_unary(
            _ATTACH_METHOD,
            request_serializer=transfer_pb2.AttachRequest.SerializeToString,
            response_deserializer=transfer_pb2.AttachResponse.FromString,
        )
        request = transfer_pb2.AttachRequest(
            transport=NAME,
            fingerprint=self.agent.fingerprint,
            slot=grant.slot,
            generation=grant.generation,
        )
        try:
            answer = await attach(request, metadata=token_metadata(grant), timeout=CONNECT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise transfer_error(error, address) from error
        peer = await self.agent.connect(answer.metadata)
        self._attached[address] = _Attached(hello.incarnation, peer)
        self._watches[address] = asyncio.create_task(self._forget_when_gone(channel, address))
        return peer

    async def _forget_when_gone(self, channel: grpc.aio.Channel, address: str) -> None:
        """A worker that died without a lane would be kept for ever: nobody else notices it here."""
        ready = grpc.ChannelConnectivity.READY
        while channel.get_state() is ready:
            await channel.wait_for_state_change(ready)
        await self.lost(address)


async def _opened(call: LaneCall, grant: Grant) -> transfer_pb2.LaneOpened:
    opening = transfer_pb2.LaneOpen(transport=NAME, slot=grant.slot, generation=grant.generation)
    # A call that is over already has its reason in its status, which the read raises.
    with suppress(asyncio.InvalidStateError):
        await call.write(transfer_pb2.LaneRequest(open=opening))
    answer = await call.read()
    if not isinstance(answer, transfer_pb2.LaneResponse) or not answer.HasField("opened"):
        raise TransportError("a lane ended before it opened: the worker shuts down; try another")
    return answer.opened
