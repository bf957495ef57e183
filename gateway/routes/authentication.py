"""API keys at the REST port: who may go where."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.keys.ring import KeyRing
from gateway.principal import STRANGER, Principal, set_principal
from gateway.routes.failures import error_response, reply_to
from gateway.routes.names import REQUEST_ID_HEADER, request_id_from
from shared.errors import AuthenticationError, PermissionDeniedError, TandemError

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/healthz", "/"})
"""No key needed: probes, and the static page, whose data needs one. Details need an admin key."""

_OPEN_FOLDERS = ("/page/",)

_ADMIN_PATHS = ("/metrics", "/admin", "/debug")


class Authentication:
    """Refuses callers without a valid key, and tells the application who calls.

    Args:
        app: the application inside.
        ring: checks keys.
        on_refused: told the code of each refusal.
    """

    def __init__(self, app: ASGIApp, ring: KeyRing, *, on_refused: Callable[[str], None]) -> None:
        self._app = app
        self._ring = ring
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        assert scope["type"] == "http", "the server runs without lifespan and websockets"
        headers = Headers(scope=scope)
        path: str = scope["path"]
        try:
            principal = self._caller(path, headers.get("authorization"))
            _check_reach(path, principal)
        except TandemError as error:
            self._on_refused(error.error_code)
            request_id = request_id_from(headers.get(REQUEST_ID_HEADER))
            refusal = error_response(reply_to(error), request_id=request_id)
            await refusal(scope, receive, send)
            return
        set_principal(principal)
        await self._app(scope, receive, send)

    def _caller(self, path: str, authorization: str | None) -> Principal:
        if not is_open(path):
            return self._ring.authenticate(authorization)
        try:
            return self._ring.authenticate(authorization)
        except AuthenticationError:
            return STRANGER  # a probe needs no key, and a wrong one must not fail it


def is_open(path: str) -> bool:
    """Whether a path is served without a key."""
    return path in OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _check_reach(path: str, principal: Principal) -> None:
    needs_admin = any(path == root or path.startswith(f"{root}/") for root in _ADMIN_PATHS)
    if needs_admin and not principal.admin:
        raise PermissionDeniedError(
            f"the API key {principal.key_id} may not read {path[:100]}: it is for operators; use "
            "an admin key (`tandem key new ID --admin`), or the admin port"
        )
