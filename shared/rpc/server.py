"""gRPC servers with health, reflection, interceptors and a clear word on a busy port."""

import logging
from collections.abc import Sequence

import grpc.aio
import structlog
from grpc_reflection.v1alpha import reflection

from shared.rpc.health import Health
from shared.rpc.interceptors import (
    ErrorInterceptor,
    InFlight,
    InFlightInterceptor,
    RequestIdInterceptor,
)
from shared.rpc.options import server_options
from shared.rpc.tls import server_credentials
from shared.rpc.trace_interceptors import TraceInterceptor
from shared.telemetry.certificates import Certificates
from shared.telemetry.ports import is_loopback, join_address, port_in_use_error
from shared.telemetry.spans import QuietSource, SpanSource

_HEALTH_SERVICE = "grpc.health.v1.Health"

_log = structlog.get_logger(__name__)


class _NoArguments(logging.Filter):
    """Puts a record's arguments into its text, so that who keeps the record keeps none of them.

    grpc's AioServer (1.83.2, and still in its main branch) hands itself to a debug line from its
    `__dealloc__`, when it goes without having been stopped; one never started always does. It is
    freed whatever still points to it, and a handler that keeps records, as pytest's does, later
    drops a reference to memory that is free or has become somebody else's: another server is freed
    while in use (its `__del__` then finds a future in its place), or the process crashes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = record.getMessage(), ()
        return True


logging.getLogger("grpc._cython.cygrpc").addFilter(_NoArguments())


class RpcServer:
    """A bound server; add servicers to `.server`, then `start()`.

    Args:
        server: the grpc.aio server, already bound.
        host: host it is bound to.
        port: port it is bound to.
        health: its health service.
        in_flight: its count of running calls.
    """

    def __init__(
        self, server: grpc.aio.Server, *, host: str, port: int, health: Health, in_flight: InFlight
    ) -> None:
        self.server = server
        self.host = host
        self.port = port
        self.health = health
        self.in_flight = in_flight

    @property
    def address(self) -> str:
        """host:port, with brackets around an IPv6 host."""
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Begins to answer; alive, and not ready until `health.set_ready(True)`."""
        await self.health.set_alive(True)
        await self.health.set_ready(False)
        await self.server.start()

    async def drain(self, *, timeout_s: float) -> bool:
        """Says not ready and waits for running calls; False when they took longer."""
        await self.health.set_ready(False)
        return await self.in_flight.wait_idle(timeout_s)

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """Refuses new calls, gives running ones `grace_s`, then cancels them; twice is fine."""
        await self.health.set_ready(False)
        await self.server.stop(grace_s)


def build_server(  # noqa: PLR0913  what a server can be told
    *,
    host: str,
    port: int,
    service_names: Sequence[str],
    with_reflection: bool = True,
    spans: SpanSource | None = None,
    certificates: Certificates | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> RpcServer:
    """A server bound to host:port (0 picks a free port); call it inside the running loop.

    Args:
        host: interface to bind.
        port: port, or 0.
        service_names: full names of the services that will be added, for health and reflection.
        with_reflection: offer gRPC reflection.
        spans: records traces; without, they are only handed on.
        certificates: speak TLS with these, and ask clients for a certificate when authorities are
            among them; plain text without.
        interceptors: run around every call of ours, inside request ids and error mapping.

    Raises:
        ConfigError: code `port_in_use` when somebody else has the port.
    """
    in_flight = InFlight()
    server = grpc.aio.server(
        options=server_options(),
        interceptors=[
            InFlightInterceptor(in_flight),
            RequestIdInterceptor(),
            TraceInterceptor(spans or QuietSource()),
            ErrorInterceptor(),
            *interceptors,
        ],
    )
    bound = _bind(server, host, port, certificates)
    health = Health(service_names)
    health.add_to(server)
    if with_reflection:
        names = (*service_names, _HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    if certificates is None and not is_loopback(host):
        _log.warning(
            "grpc is plain text beyond loopback; set certificates or keep it on a private network",
            host=host,
        )
    return RpcServer(server, host=host, port=bound, health=health, in_flight=in_flight)


def _bind(server: grpc.aio.Server, host: str, port: int, certificates: Certificates | None) -> int:
    address = join_address(host, port)
    try:
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(certificates))
    except RuntimeError as error:
        raise port_in_use_error(host, port) from error
