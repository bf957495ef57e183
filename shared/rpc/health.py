"""Standard gRPC health: "" and every service follow readiness; `liveness` stands alone."""

from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

LIVENESS = "liveness"
"""Serving while the process makes progress."""

READINESS = "readiness"
"""Serving while the process takes new work."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """What a server says of itself.

    Args:
        service_names: full names of the services that are offered.
    """

    def __init__(self, service_names: Sequence[str]) -> None:
        self._servicer = health.aio.HealthServicer()
        self._ready_names = ("", READINESS, *service_names)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds grpc.health.v1 to a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_alive(self, alive: bool) -> None:  # noqa: FBT001  the value is the argument
        """Says whether the process makes progress."""
        await self._servicer.set(LIVENESS, _SERVING if alive else _NOT_SERVING)

    async def set_ready(self, ready: bool) -> None:  # noqa: FBT001  the value is the argument
        """Says whether new work is welcome."""
        for name in self._ready_names:
            await self._servicer.set(name, _SERVING if ready else _NOT_SERVING)
