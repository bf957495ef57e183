"""The admin port of every role: metrics and health, for machines and operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.telemetry.http_server import HttpServer

LOCAL_PREFILL_METRICS = "/metrics/prefill"
"""Page of a decode worker's own prefill engine, whose metrics have a prefill worker's names; every
decode worker has it, so that one scrape setting suits all."""

_OK = 200
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether new work is welcome, and what is missing."""

    ready: bool
    """True: send work."""
    phase: str = "serving"
    """starting, loading, waiting, serving, draining or failed."""
    progress: float = 1.0
    """Share of the phase that is done, 0 to 1."""
    detail: str = ""
    """What is missing, or what to look at, for a human."""


def metrics_response(registry: CollectorRegistry, *, accept: str) -> Response:
    """The registry in the format that the `Accept` header asks for."""
    encoder, content_type = choose_encoder(accept)
    return Response(encoder(registry), headers={"content-type": content_type})


def readiness_response(
    readiness: Readiness, *, facts: Mapping[str, object] | None = None
) -> JSONResponse:
    """200 or 503 with phase, progress and detail, and what a role tells beside them."""
    body = {
        **(facts or {}),
        "status": "ready" if readiness.ready else "not_ready",
        "phase": readiness.phase,
        "progress": readiness.progress,
        "detail": readiness.detail,
    }
    return JSONResponse(body, status_code=_OK if readiness.ready else _UNAVAILABLE)


def liveness_response(*, alive: bool) -> JSONResponse:
    """200 or 503."""
    body = {"status": "alive" if alive else "stalled"}
    return JSONResponse(body, status_code=_OK if alive else _UNAVAILABLE)


def admin_app(
    *,
    registry: CollectorRegistry,
    readiness: Callable[[], Readiness],
    alive: Callable[[], bool],
    refresh: Callable[[], None] | None = None,
    facts: Callable[[], Mapping[str, object]] | None = None,
    more: Sequence[Route] = (),
) -> Starlette:
    """The admin application.

    Args:
        registry: what /metrics shows.
        readiness: asked by /health/ready.
        alive: asked by /health/live; False when the engine has work and makes no progress.
        refresh: called before /metrics, to set gauges that are read rather than counted.
        facts: told by /health/ready beside readiness.
        more: what a role has beside.
    """

    async def metrics(request: Request) -> Response:
        if refresh is not None:
            refresh()
        return metrics_response(registry, accept=request.headers.get("accept", ""))

    async def live(_request: Request) -> Response:
        return liveness_response(alive=alive())

    async def ready(_request: Request) -> Response:
        return readiness_response(readiness(), facts=None if facts is None else facts())

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/health", ready),
            Route("/healthz", ready),
            *more,
        ]
    )


def admin_server(  # noqa: PLR0913  what the pages show, and where
    *,
    host: str,
    port: int,
    registry: CollectorRegistry,
    readiness: Callable[[], Readiness],
    alive: Callable[[], bool],
    refresh: Callable[[], None] | None = None,
    facts: Callable[[], Mapping[str, object]] | None = None,
    more: Sequence[Route] = (),
) -> HttpServer:
    """The admin server of a role; `await .start()`, then read `.address`."""
    app = admin_app(
        registry=registry,
        readiness=readiness,
        alive=alive,
        refresh=refresh,
        facts=facts,
        more=more,
    )
    return HttpServer(app, host=host, port=port)
