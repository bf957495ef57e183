"""HTTP/1.1 connections with bounded heads, whose refusals are JSON like every other answer.

The parser below the application refuses what is not HTTP, and would keep a head of any length in
memory for any time; here both have an end.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 32 * 1024
"""Request line and headers together; more is 431."""

HEAD_TIMEOUT_S = 30.0
"""How long a connection may take to send a head, in seconds; then it is 408."""

_LINGER_S = 1.0
"""How long a refused client may go on sending unheard: closing at once would reset the connection,
and the client would lose the answer."""

_LINE_OVERHEAD = 4  # colon, space and line end of a header

_REFUSALS = {
    HTTPStatus.BAD_REQUEST: (
        "invalid_http_request",
        "this is not an HTTP/1.1 request: the bytes were damaged, or speak another protocol, such "
        "as TLS to a plain port; correct the URL's scheme or the client",
    ),
    HTTPStatus.REQUEST_TIMEOUT: (
        "request_timeout",
        f"the request line and headers did not arrive in {HEAD_TIMEOUT_S:g} s: the client stalled; "
        "connect again",
    ),
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
        "headers_too_large",
        f"request line and headers are over the limit of {MAX_HEAD_BYTES} bytes: a cookie or "
        "another header grew too long; send fewer or shorter ones",
    ),
}


class _HeadTooLargeError(Exception):
    """Stops the parser."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._silent_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_message = False
        self._refused = False
        self._unanswered: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; its first head is due."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and every request that it sent is told so.

        The base class tells the last one only, not one that is answered while others wait for it.
        """
        self._head_arrived()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived; a head that never ends is cut off."""
        if self._refused:
            return
        self._silent_bytes += len(data)
        idle, last = self.timeout_keep_alive_task is not None, self.cycle
        super().data_received(data)
        if idle and self.cycle is last and self._head_timer is None and not self._in_message:
            # Empty lines begin no head, but they stopped the base class's clock for idle clients.
            self._await_head()
        # A single header is reported at its end only, so what the parser holds is counted here.
        if self._silent_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_bytes = 0
        self._in_message = True
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        self._count(len(name) + len(value) + _LINE_OVERHEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._silent_bytes = 0
        self._head_arrived()
        super().on_headers_complete()
        waiting = [cycle for cycle in self._unanswered if not cycle.response_complete]
        self._unanswered = [*waiting, self.cycle]

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._silent_bytes = 0
        self._in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  the base class's plain text
        """The parser gave up: because the head is too large, or because it is no HTTP."""
        too_large = self._head_bytes > MAX_HEAD_BYTES
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
        )

    def _count(self, num_bytes: int) -> None:
        self._silent_bytes = 0
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLargeError

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_overdue)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_overdue(self) -> None:
        self._head_timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus) -> None:
        self._head_arrived()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # An answer that is being written cannot be followed by another one.
            self.transport.close()
            return
        self.transport.write(refusal(status))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.close)


def refusal(status: HTTPStatus) -> bytes:
    """A whole response that closes the connection, in the one error shape."""
    code, message = _REFUSALS[status]
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
