"""A streamed response: late status, keep-alive comments, exactly one terminal frame."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.background import end_tasks
from gateway.errors import ErrorReply
from gateway.routes.disconnect import client_gone
from gateway.routes.failures import error_response, reply_to
from gateway.routes.names import REQUEST_ID_HEADER

CLIENT_CLOSED = 499


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended."""

    status: int
    """The HTTP status that was sent, 499 when the client left."""
    error: ErrorReply | None
    """What went wrong, if something did."""


def error_frame(reply: ErrorReply) -> bytes:
    """The error on a data line."""
    return sse.frame(reply.body)


class EventStream(Response):
    """Sends frames as server-sent events.

    The status waits for the first frame or for the first keep-alive deadline, whichever is
    earlier: an early failure keeps its own status, a long prefill keeps the connection alive.

    Args:
        frames: the frames; it is closed when the client leaves.
        request_id: for the header.
        keepalive_s: silence after which a comment is sent.
        headers: further response headers.
        on_end: told once how it ended.
        failure: the last frame of a stream that fails after its status was sent.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        request_id: str,
        keepalive_s: float,
        headers: Mapping[str, str],
        on_end: Callable[[StreamEnd], None],
        failure: Callable[[ErrorReply], bytes] = error_frame,
    ) -> None:
        super().__init__()
        self._frames = frames
        self._request_id = request_id
        self._keepalive_s = keepalive_s
        self._extra = {**sse.HEADERS, **headers, REQUEST_ID_HEADER: request_id}
        self._failure = failure
        self._on_end = on_end
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the stream to its end."""
        gone = asyncio.ensure_future(client_gone(receive))
        end = StreamEnd(CLIENT_CLOSED, None)
        try:
            finished = await self._relay(gone, send)
            if finished:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                end = StreamEnd(200, None)
        except Exception as error:  # noqa: BLE001 - a stream must end with a frame, whatever failed
            reply = reply_to(error)
            end = StreamEnd(200 if self._begun else reply.status, reply)
            await self._fail(reply, scope, receive, send)
        finally:
            await end_tasks(gone)
            await self._frames.aclose()
            self._on_end(end)

    async def _relay(self, gone: asyncio.Future[None], send: Send) -> bool:
        """Sends frames until there are no more; False when the client left."""
        upcoming: asyncio.Future[bytes] | None = None
        try:
            while True:
                if upcoming is None:
                    upcoming = asyncio.ensure_future(anext(self._frames))
                waited: set[asyncio.Future[Any]] = {upcoming, gone}
                await asyncio.wait(
                    waited,
                    timeout=self._keepalive_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if gone.done():
                    return False
                if not upcoming.done():
                    await self._send(sse.PING, send)
                    continue
                try:
                    frame = upcoming.result()
                except StopAsyncIteration:
                    return True
                upcoming = None
                await self._send(frame, send)
        finally:
            if upcoming is not None:
                await end_tasks(upcoming)

    async def _send(self, data: bytes, send: Send) -> None:
        if not self._begun:
            self._begun = True
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in self._extra.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _fail(self, reply: ErrorReply, scope: Scope, receive: Receive, send: Send) -> None:
        # A connection that broke while the error was written has nobody left to tell.
        with contextlib.suppress(OSError):
            if not self._begun:
                await error_response(reply, request_id=self._request_id)(scope, receive, send)
                return
            await self._send(self._failure(reply), send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
