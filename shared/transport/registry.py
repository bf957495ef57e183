"""Every transport by name."""

from collections.abc import Callable

from shared.registry.registry import Registry
from shared.transport import grpc_stream, loopback, nixl, nixl_wire
from shared.transport.base import KvTransport, TransportContext

TransportFactory = Callable[[TransportContext], KvTransport]
"""Makes a transport for this side."""


def transport_registry() -> Registry[TransportFactory]:
    """All transports, best first."""
    registry: Registry[TransportFactory] = Registry("transport")
    registry.register(loopback.NAME, loopback.LoopbackTransport, internal=True)
    registry.register(nixl_wire.NAME, nixl.NixlTransport)
    registry.register(grpc_stream.NAME, grpc_stream.GrpcTransport)
    return registry
