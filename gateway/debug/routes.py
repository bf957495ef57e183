"""GET /debug/requests and /debug/requests/{id}, for the admin port."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.debug.request_log import RequestLog
from gateway.errors import error_body
from gateway.routes.json_response import json_response

_NOT_FOUND = 404
_JSON = "application/json"
_PRIVATE = {"cache-control": "no-store"}


def debug_routes(log: RequestLog) -> list[Route]:
    """The two routes over a log."""

    async def listing(_request: Request) -> Response:
        return Response(log.listing(), media_type=_JSON, headers=_PRIVATE)

    async def one(request: Request) -> Response:
        name: str = request.path_params["name"]
        found = log.find(name)
        if found is not None:
            return Response(found, media_type=_JSON, headers=_PRIVATE)
        message = (
            f"no request {name[:100]!r} is remembered: it never came in, it was refused at the "
            "door, or later ones took its place (debug_requests, debug_bytes); see /debug/requests"
        )
        body = error_body(message=message, kind="invalid_request_error", code="not_found")
        return json_response(body, status=_NOT_FOUND)

    return [
        Route("/debug/requests", listing),
        Route("/debug/requests/{name:path}", one),
    ]
