"""The REST application: which path leads where."""

from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from gateway.routes.admin import DRAIN, LIVE, WORKERS, AdminRoutes
from gateway.routes.document import DOCUMENT, DocumentRoute
from gateway.routes.failures import on_client_gone, on_exception, on_http_exception
from gateway.routes.generate import CHAT, COMPLETIONS, RESPONSES, GenerateRoutes
from gateway.routes.models import ModelRoutes
from gateway.routes.operations import OperationRoutes
from gateway.routes.page import PAGE, PAGE_FILES, PageRoutes
from gateway.routes.properties import LOAD, PROPS, PropertyRoutes
from gateway.routes.quota_headers import QuotaHeaders
from gateway.routes.tokens import DETOKENIZE, RENDER, TOKENIZE, TokenRoutes
from shared.errors import TandemError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Who answers what."""

    generate: GenerateRoutes
    """Chat and plain completions, and responses."""
    models: ModelRoutes
    """What is served."""
    operations: OperationRoutes
    """Health, metrics and version."""
    tokens: TokenRoutes
    """Prompts without answers."""
    properties: PropertyRoutes
    """Limits and load."""
    document: DocumentRoute
    """Describes them all."""
    admin: AdminRoutes
    """The operators' part."""
    page: PageRoutes | None
    """The built-in page, unless it is off."""


def rest_app(endpoints: Endpoints) -> Starlette:
    """The application; every refusal has the one error shape."""
    routes = [
        Route(CHAT, endpoints.generate.chat, methods=["POST"]),
        Route(COMPLETIONS, endpoints.generate.completions, methods=["POST"]),
        Route(RESPONSES, endpoints.generate.responses, methods=["POST"]),
        Route("/v1/models", endpoints.models.listing),
        Route("/v1/models/{model_id:path}", endpoints.models.one),
        Route("/health/live", endpoints.operations.live),
        Route("/health/ready", endpoints.operations.ready),
        Route("/health", endpoints.operations.ready),
        Route("/healthz", endpoints.operations.ready),
        Route("/metrics", endpoints.operations.metrics),
        Route("/version", endpoints.operations.version),
        Route(TOKENIZE, endpoints.tokens.tokenize, methods=["POST"]),
        Route(DETOKENIZE, endpoints.tokens.detokenize, methods=["POST"]),
        Route(RENDER, endpoints.tokens.render, methods=["POST"]),
        Route(PROPS, endpoints.properties.props),
        Route(LOAD, endpoints.properties.load),
        Route(DOCUMENT, endpoints.document.document),
        Route(LIVE, endpoints.admin.feed),
        Route(WORKERS, endpoints.admin.listing),
        Route(DRAIN, endpoints.admin.drain, methods=["POST"]),
    ]
    page = endpoints.page
    if page is not None:
        routes += [Route(PAGE, page.index), Route(PAGE_FILES, page.file)]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(QuotaHeaders)],
        exception_handlers={
            HTTPException: on_http_exception,
            ClientDisconnect: on_client_gone,
            TandemError: on_exception,
            Exception: on_exception,
        },
    )
    app.router.redirect_slashes = False
    return app


def working_paths(app: Starlette) -> frozenset[str]:
    """Paths where clients ask for work, as opposed to looking at the gateway."""
    return frozenset(
        route.path
        for route in app.routes
        if isinstance(route, Route) and "POST" in (route.methods or ()) and "{" not in route.path
    )
