"""Errors as HTTP responses, for routes and for the framework's own refusals."""

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.errors import ErrorReply, error_body, reply_for
from gateway.routes.json_response import json_response
from gateway.routes.names import REQUEST_ID_HEADER, request_id_from
from shared.errors import CancelledError, InternalError, TandemError
from shared.rpc.status import NEUTRAL_MESSAGE

_NOT_FOUND = 404
_NOT_ALLOWED = 405
_FIRST_SERVER_ERROR = 500
_STORED = "/v1/responses/"

_log = structlog.get_logger(__name__)


def reply_to(error: Exception) -> ErrorReply:
    """The reply for any exception; one that nobody foresaw is logged with its stack."""
    if isinstance(error, TandemError):
        if isinstance(error, InternalError):
            _log.error("internal error", exc_info=error)
        return reply_for(error)
    _log.error("unforeseen exception", exc_info=error)
    return reply_for(InternalError(NEUTRAL_MESSAGE))


def error_response(reply: ErrorReply, *, request_id: str) -> Response:
    """The reply as a response."""
    headers = {**reply.headers, REQUEST_ID_HEADER: request_id}
    return json_response(reply.body, status=reply.status, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the one error shape."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == _NOT_FOUND:
        code = "not_found"
        message = f"there is nothing at {path}; {_elsewhere(path)}"
    elif error.status_code == _NOT_ALLOWED:
        code = "method_not_allowed"
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not possible at {path}; use {allowed}"
    else:
        code, message = "http_error", str(error.detail)
    kind = "invalid_request_error" if error.status_code < _FIRST_SERVER_ERROR else "server_error"
    reply = ErrorReply(
        error.status_code,
        error_body(message=message, kind=kind, code=code),
        {name.lower(): value for name, value in (error.headers or {}).items()},
    )
    return error_response(reply, request_id=_id_of(request))


async def on_client_gone(request: Request, error: Exception) -> Response:
    """A client that left before its body was whole: nobody's defect, and nobody reads this."""
    assert isinstance(error, ClientDisconnect)
    left = CancelledError("the client closed the connection before its request was whole")
    return error_response(reply_to(left), request_id=_id_of(request))


async def on_exception(request: Request, error: Exception) -> Response:
    """Everything that a route let through."""
    return error_response(reply_to(error), request_id=_id_of(request))


def _elsewhere(path: str) -> str:
    if path.startswith(_STORED):
        return "responses are not stored here; send the whole conversation to /v1/responses"
    return "see /v1/models, /v1/chat/completions, /v1/responses, /health/ready"


def _id_of(request: Request) -> str:
    return request_id_from(request.headers.get(REQUEST_ID_HEADER))
