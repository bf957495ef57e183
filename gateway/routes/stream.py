"""A streamed response: late status, keep-alive comments, exactly one terminal frame."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

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
        self._sent_at = 0.0

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
        frames = asyncio.ensure_future(self._send_frames(send))
        silence = asyncio.ensure_future(self._break_silence(send))
        try:
            waited: set[asyncio.Future[None]] = {frames, silence, gone}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return False
            (frames if frames.done() else silence).result()
            return True
        finally:
            await end_tasks(frames, silence)

    async def _send_frames(self, send: Send) -> None:
        # One task for all frames: waking one for each costs more than the frame itself.
        async for frame in self._frames:
            await self._send(frame, send)

    async def _break_silence(self, send: Send) -> None:
        """Sends a comment whenever nothing else was sent for so long."""
        self._sent_at = time.monotonic()
        while True:
            await asyncio.sleep(self._sent_at + self._keepalive_s - time.monotonic())
            if time.monotonic() - self._sent_at >= self._keepalive_s:
                await self._send(sse.PING, send)

    async def _send(self, data: bytes, send: Send) -> None:
        if not self._begun:
            self._begun = True
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in self._extra.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at = time.monotonic()

    async def _fail(self, reply: ErrorReply, scope: Scope, receive: Receive, send: Send) -> None:
        # A connection that broke while the error was written has nobody left to tell.
        with contextlib.suppress(OSError):
            if not self._begun:
                await error_response(reply, request_id=self._request_id)(scope, receive, send)
                return
            await self._send(self._failure(reply), send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
