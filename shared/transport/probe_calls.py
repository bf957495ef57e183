"""The calls around a canary over gRPC, and the greeting that tells where a peer's memory is."""

from typing import TypeVar

import grpc
import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.status import error_from_rpc
from shared.rpc.tls import PeerTls
from shared.transport.base import Grant
from shared.transport.greeting import CONNECT_SECONDS, say_hello
from shared.transport.hello import Peer
from shared.types.topology import Topology
from shared.wire.place import place_from_pb

MAX_CHANNELS = 256
"""Connections kept to decode workers."""

_PREFIX = "/tandem.v1.TransferService/"

Req = TypeVar("Req")
Res = TypeVar("Res")


class GrpcProbeCalls:
    """Asks decode workers.

    Args:
        own: this side.
        tls: mutual TLS with them; plain text without.
    """

    def __init__(self, own: Peer, *, tls: PeerTls | None = None) -> None:
        self._own = own
        self._channels = ChannelPool(tls=tls, max_channels=MAX_CHANNELS)

    async def meet(self, address: str, grant: Grant) -> Topology:
        """Greets the worker that gave a grant; returns its place.

        Raises:
            TransportError: unreachable, restarted since the grant, or another model or protocol.
        """
        channel = self._channels.get(address)
        answer = await say_hello(channel, address=address, own=self._own, grant=grant)
        return place_from_pb(answer.place)

    async def open(self, address: str, length: int) -> Grant | None:
        """See `ProbeCalls.open`."""
        call = self._channels.get(address).unary_unary(
            f"{_PREFIX}OpenProbe",
            request_serializer=transfer_pb2.OpenProbeRequest.SerializeToString,
            response_deserializer=transfer_pb2.OpenProbeResponse.FromString,
        )
        request = transfer_pb2.OpenProbeRequest(length=length)
        try:
            answer = await call(request, timeout=CONNECT_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise error_from_rpc(error) from error
        return Grant(
            slot=answer.slot,
            generation=answer.generation,
            lease_ms=answer.lease_ms,
            incarnation=answer.incarnation,
            token=answer.token,
        )

    async def close(self, address: str, grant: Grant) -> int:
        """See `ProbeCalls.close`."""
        call = self._channels.get(address).unary_unary(
            f"{_PREFIX}CloseProbe",
            request_serializer=transfer_pb2.CloseProbeRequest.SerializeToString,
            response_deserializer=transfer_pb2.CloseProbeResponse.FromString,
        )
        request = transfer_pb2.CloseProbeRequest(
            slot=grant.slot, generation=grant.generation, token=grant.token
        )
        try:
            answer = await call(request, timeout=CONNECT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return int(answer.crc32)

    async def shut(self) -> None:
        """Drops all connections; twice is fine."""
        await self._channels.close()
