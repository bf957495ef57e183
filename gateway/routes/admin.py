"""What operators see and do through the public port: the live feed, workers, drain."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway import sse
from gateway.clients.control import ControlClient
from gateway.errors import ErrorReply, error_body
from gateway.principal import ANONYMOUS, current_principal
from gateway.routes.failures import error_response
from gateway.routes.json_response import json_response
from gateway.routes.names import REQUEST_ID_HEADER, request_id_from
from gateway.routes.stream import EventStream, StreamEnd
from gateway.workers import Workers
from shared.errors import OverloadedError, PermissionDeniedError
from shared.telemetry.ports import is_loopback

LIVE = "/admin/live"
WORKERS = "/admin/workers"
DRAIN = "/admin/workers/{worker_id}/drain"

_NOT_FOUND = 404
_UNSUPPORTED = 415
_PERIOD_S = 1.0
_MAX_FEEDS = 16
_JSON = "application/json"

_log = structlog.get_logger(__name__)


class AdminRoutes:
    """The operators' part.

    Args:
        workers: who is alive.
        control: asks a worker to drain.
        live: the state to show, ready for JSON.
        host: what the gateway listens on: without keys, only a private gateway drains workers.
        keepalive_s: silence after which a feed gets a comment line.
    """

    def __init__(
        self,
        *,
        workers: Workers,
        control: ControlClient,
        live: Callable[[], dict[str, Any]],
        host: str,
        keepalive_s: float,
    ) -> None:
        self._workers = workers
        self._control = control
        self._live = live
        self._host = host
        self._keepalive_s = keepalive_s
        self._closing = asyncio.Event()
        self._feeds = 0

    def close(self) -> None:
        """Ends all feeds, which would hold up the server's stop."""
        self._closing.set()

    async def listing(self, _request: Request) -> Response:
        """Every known worker."""
        return json_response({"workers": self._workers.describe()})

    async def feed(self, request: Request) -> Response:
        """The live state once a second, as server-sent events.

        Raises:
            OverloadedError: too many pages look at once.
        """
        if self._feeds >= _MAX_FEEDS:
            raise OverloadedError(
                f"{_MAX_FEEDS} live feeds are open: close a page that shows this gateway",
                code="too_many_feeds",
                retry_after_s=_PERIOD_S,
            )
        self._feeds += 1
        return EventStream(
            self._frames(),
            request_id=_id_of(request),
            keepalive_s=self._keepalive_s,
            headers={},
            on_end=self._ended,
        )

    async def drain(self, request: Request) -> Response:
        """Asks one worker to take no more work, finish what it has and end.

        Raises:
            PermissionDeniedError: the caller may not.
            HTTPException: 415 for a body that is not JSON.
            TandemError: the worker does not answer.
        """
        self._check_operator()
        # Another site's page can post plain text to us, but not JSON without our consent.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise HTTPException(_UNSUPPORTED, f"send content-type: {_JSON}")
        worker_id = request.path_params["worker_id"]
        address = self._address_of(worker_id)
        if address is None:
            return _no_such_worker(worker_id, request_id=_id_of(request))
        running = await self._control.drain(address)
        _log.warning("drain of a worker was asked for", worker=worker_id, running=running)
        return json_response({"worker_id": worker_id, "draining": True, "running": running})

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        yield sse.frame(self._live())  # also when closing: an answer without a frame is none
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(_PERIOD_S):
                    await self._closing.wait()
            except TimeoutError:
                yield sse.frame(self._live())

    def _ended(self, _end: StreamEnd) -> None:
        self._feeds -= 1

    def _address_of(self, worker_id: str) -> str | None:
        for worker in self._workers.describe():
            if worker["worker_id"] == worker_id:
                return str(worker["address"])
        return None

    def _check_operator(self) -> None:
        principal = current_principal()
        if principal.admin and (principal is not ANONYMOUS or is_loopback(self._host)):
            return
        raise PermissionDeniedError(
            "draining a worker needs an API key with admin rights; without keys only a gateway "
            f"that listens on loopback does it, and this one listens on {self._host}"
        )


def _id_of(request: Request) -> str:
    return request_id_from(request.headers.get(REQUEST_ID_HEADER))


def _no_such_worker(worker_id: str, *, request_id: str) -> Response:
    message = (
        f"no worker is called {worker_id[:100]}: it ended, or the name is mistyped; see {WORKERS}"
    )
    body = error_body(message=message, kind="invalid_request_error", code="worker_not_found")
    return error_response(ErrorReply(_NOT_FOUND, body, {}), request_id=request_id)
