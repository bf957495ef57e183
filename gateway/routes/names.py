"""Request ids and endpoint labels."""

import re
import uuid

import structlog
from starlette.requests import Request

from gateway.intake import Origin, new_origin
from shared.rpc.interceptors import set_request_id

REQUEST_ID_HEADER = "x-request-id"

_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:\-]{1,100}")


def request_id_from(given: str | None) -> str:
    """The caller's id when it is short and plain, else a fresh one."""
    if given is not None and _ACCEPTABLE.fullmatch(given):
        return given
    return f"req_{uuid.uuid4().hex}"


def origin_of(request: Request, endpoint: str) -> Origin:
    """Names a request that arrives now; its log lines and calls to workers carry the name."""
    origin = new_origin(request_id_from(request.headers.get(REQUEST_ID_HEADER)), endpoint)
    set_request_id(origin.request_id)
    structlog.contextvars.bind_contextvars(request_id=origin.request_id)
    return origin
