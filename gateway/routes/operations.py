"""Health, metrics and version on the public port."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from gateway.principal import current_principal
from gateway.routes.json_response import json_response
from shared.config.version import package_version
from shared.telemetry.admin import Readiness, liveness_response, metrics_response

_UNAVAILABLE = 503


class OperationRoutes:
    """What operators and probes ask.

    Args:
        readiness: whether work can be served now.
        details: workers and state of discovery, for the health answer.
        registry: what /metrics shows.
        refresh: sets the gauges before each look.
    """

    def __init__(
        self,
        *,
        readiness: Callable[[], Readiness],
        details: Callable[[], dict[str, Any]],
        registry: CollectorRegistry,
        refresh: Callable[[], None],
    ) -> None:
        self._readiness = readiness
        self._details = details
        self._registry = registry
        self._refresh = refresh

    async def live(self, _request: Request) -> Response:
        """The process answers."""
        return liveness_response(alive=True)

    async def ready(self, _request: Request) -> Response:
        """200 when a request could be served now, else 503 with the reason.

        Where keys are asked for, only operators see who the workers are.
        """
        readiness = self._readiness()
        body: dict[str, Any] = {
            "status": "ready" if readiness.ready else "not_ready",
            "phase": readiness.phase,
            "progress": readiness.progress,
            "detail": readiness.detail,
        }
        if current_principal().admin:
            body |= self._details()
        return json_response(body, status=200 if readiness.ready else _UNAVAILABLE)

    async def metrics(self, request: Request) -> Response:
        """Prometheus exposition."""
        self._refresh()
        return metrics_response(self._registry, accept=request.headers.get("accept", ""))

    async def version(self, _request: Request) -> Response:
        """Package version."""
        return json_response({"version": package_version(), "api": "tandem.v1"})
