"""The REST application: which path leads where."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from gateway.routes.failures import on_exception, on_http_exception
from gateway.routes.generate import CHAT, COMPLETIONS, GenerateRoutes
from gateway.routes.models import ModelRoutes
from gateway.routes.operations import OperationRoutes
from shared.errors import TandemError


def rest_app(
    generate: GenerateRoutes, *, models: ModelRoutes, operations: OperationRoutes
) -> Starlette:
    """The application; every refusal has the one error shape."""
    routes = [
        Route(CHAT, generate.chat, methods=["POST"]),
        Route(COMPLETIONS, generate.completions, methods=["POST"]),
        Route("/v1/models", models.listing),
        Route("/v1/models/{model_id:path}", models.one),
        Route("/health/live", operations.live),
        Route("/health/ready", operations.ready),
        Route("/health", operations.ready),
        Route("/healthz", operations.ready),
        Route("/metrics", operations.metrics),
        Route("/version", operations.version),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: on_http_exception,
            TandemError: on_exception,
            Exception: on_exception,
        },
    )
    app.router.redirect_slashes = False
    return app
