"""The calls around a canary: the receiver's side of OpenProbe and CloseProbe."""

from typing import Any

import grpc
import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.transport.grpc_receiver import SERVICE_NAME
from shared.transport.probe_ground import ProbeGround


class ProbeReceiver:
    """Answers the calls.

    Args:
        ground: where canaries land.
    """

    def __init__(self, ground: ProbeGround) -> None:
        self._ground = ground

    async def open(
        self,
        request: transfer_pb2.OpenProbeRequest,
        _context: grpc.aio.ServicerContext[
            transfer_pb2.OpenProbeRequest, transfer_pb2.OpenProbeResponse
        ],
    ) -> transfer_pb2.OpenProbeResponse:
        """Gives a canary its room."""
        grant = self._ground.open(request.length)
        return transfer_pb2.OpenProbeResponse(
            slot=grant.slot,
            generation=grant.generation,
            lease_ms=grant.lease_ms,
            incarnation=grant.incarnation,
            token=grant.token,
        )

    async def close(
        self,
        request: transfer_pb2.CloseProbeRequest,
        _context: grpc.aio.ServicerContext[
            transfer_pb2.CloseProbeRequest, transfer_pb2.CloseProbeResponse
        ],
    ) -> transfer_pb2.CloseProbeResponse:
        """Says what landed."""
        checksum = self._ground.close(request.slot, request.generation, token=request.token)
        return transfer_pb2.CloseProbeResponse(crc32=checksum)


def add_probe_service(server: grpc.aio.Server, ground: ProbeGround) -> None:
    """Adds OpenProbe and CloseProbe to a server that has Hello already; before it starts."""
    receiver = ProbeReceiver(ground)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "OpenProbe": grpc.unary_unary_rpc_method_handler(
            receiver.open,
            request_deserializer=transfer_pb2.OpenProbeRequest.FromString,
            response_serializer=transfer_pb2.OpenProbeResponse.SerializeToString,
        ),
        "CloseProbe": grpc.unary_unary_rpc_method_handler(
            receiver.close,
            request_deserializer=transfer_pb2.CloseProbeRequest.FromString,
            response_serializer=transfer_pb2.CloseProbeResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
