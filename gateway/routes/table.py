"""The REST application: which path leads where."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from gateway.routes.admin import DRAIN, LIVE, WORKERS, AdminRoutes
from gateway.routes.failures import on_exception, on_http_exception
from gateway.routes.generate import CHAT, COMPLETIONS, GenerateRoutes
from gateway.routes.models import ModelRoutes
from gateway.routes.operations import OperationRoutes
from gateway.routes.page import PAGE, PAGE_FILES, PageRoutes
from gateway.routes.quota_headers import QuotaHeaders
from shared.errors import TandemError


def rest_app(
    generate: GenerateRoutes,
    *,
    models: ModelRoutes,
    operations: OperationRoutes,
    admin: AdminRoutes,
    page: PageRoutes | None,
) -> Starlette:
    """The application; every refusal has the one error shape, and `page` None means no page."""
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
        Route(LIVE, admin.feed),
        Route(WORKERS, admin.listing),
        Route(DRAIN, admin.drain, methods=["POST"]),
    ]
    if page is not None:
        routes += [Route(PAGE, page.index), Route(PAGE_FILES, page.file)]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(QuotaHeaders)],
        exception_handlers={
            HTTPException: on_http_exception,
            TandemError: on_exception,
            Exception: on_exception,
        },
    )
    app.router.redirect_slashes = False
    return app
