"""Every transport by name, and the choice between them."""

from collections.abc import Callable, Sequence

from shared.errors import TransportError
from shared.registry.registry import Registry
from shared.transport import grpc_stream, loopback, nixl, nixl_wire
from shared.transport.base import KvTransport, TransportContext

TransportFactory = Callable[[TransportContext], KvTransport]
"""Makes a transport for this side."""


def transport_registry() -> Registry[TransportFactory]:
    """All transports, best first."""
    registry: Registry[TransportFactory] = Registry("transport")
    registry.register(loopback.NAME, loopback.LoopbackTransport)
    registry.register(nixl_wire.NAME, nixl.NixlTransport)
    registry.register(grpc_stream.NAME, grpc_stream.GrpcTransport)
    return registry


def choose_transport(own: Sequence[str], granted: Sequence[str]) -> str:
    """The first of the receiver's transports that this side has too.

    Raises:
        TransportError: there is none; the text lists both sides.
    """
    for name in granted:
        if name in own:
            return name
    raise TransportError(
        f"no common transport: this side has {', '.join(own) or 'none'}, the receiver takes "
        f"{', '.join(granted) or 'none'}; enable grpc on both"
    )
