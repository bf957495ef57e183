"""A client that costs little: it keeps what arrives and reads it after the clock has stopped."""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import cast

import orjson

from shared.errors import InternalError, UnavailableError

_FIRST_TEXT = re.compile(rb'"content":"[^"]')
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_OK = b"HTTP/1.1 200 "


@dataclass(slots=True)
class Exchange:
    """One request and the stream that answers it; moments of `perf_counter`."""

    sent: float
    """The request was handed to the socket."""
    first_text: float = 0.0
    """The first text was here; 0 before it."""
    ended: float = 0.0
    """The stream was complete; 0 before it."""
    pieces: list[bytes] = field(default_factory=list)
    """What arrived."""
    head: bytes = b""
    """What arrived up to the first text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a stream said."""

    text: str
    """All deltas."""
    completion_tokens: int
    """By its usage."""
    phases_ms: dict[str, float]
    """By its last chunk."""
    frames: int
    """Chunks with text."""


class Connection(asyncio.Protocol):
    """A kept-alive HTTP/1.1 connection that serves one stream after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._ended: asyncio.Future[None] | None = None
        self._begun: asyncio.Future[None] | None = None
        self._tail = b""

    async def ask(self, request: bytes, *, begun: asyncio.Future[None] | None = None) -> Exchange:
        """Sends a request and waits for the end of its stream.

        Args:
            request: head and body.
            begun: resolved at the first text.

        Raises:
            UnavailableError: the connection broke, or the answer is no stream.
        """
        assert self._transport is not None, "connected before use"
        assert self._exchange is None, "one request at a time"
        self._tail, self._begun = b"", begun
        self._ended = asyncio.get_running_loop().create_future()
        self._exchange = exchange = Exchange(time.perf_counter())
        self._transport.write(request)
        try:
            await self._ended
        finally:
            self._exchange = None
        return exchange

    def close(self) -> None:
        """Leaves, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio says so."""
        self._transport = cast("asyncio.Transport", transport)  # of uvloop: no subclass of it

    def data_received(self, data: bytes) -> None:
        """Keeps bytes; looks only for the first text and for the end."""
        exchange = self._exchange
        if exchange is None:
            return
        now = time.perf_counter()
        exchange.pieces.append(data)
        if not exchange.first_text:
            self._look(exchange, data, now)
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._tail == _LAST_CHUNK:
            exchange.ended = now
            self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side left, or we did."""
        reason = f" ({exc})" if exc is not None else ""
        self._settle(UnavailableError(f"a stream broke before its end{reason}: see the logs"))

    def _look(self, exchange: Exchange, data: bytes, now: float) -> None:
        exchange.head += data
        if len(exchange.head) >= len(_OK) and not exchange.head.startswith(_OK):
            said = exchange.head.decode(errors="replace")
            self._settle(UnavailableError(f"a request of the benchmark was refused: {said}"))
            return
        if _FIRST_TEXT.search(exchange.head):
            exchange.first_text = now
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)

    def _settle(self, error: UnavailableError | None) -> None:
        for waiting in (self._ended, self._begun):
            if waiting is None or waiting.done():
                continue
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)


async def connect(address: str) -> Connection:
    """A connection to `host:port`; close it when done."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, host, int(port))
    return connection


def chat_request(*, model: str, prompt: str, seed: int, max_tokens: int) -> bytes:
    """Head and body of a streamed chat completion with usage."""
    body = orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_answer(exchange: Exchange) -> Answer:
    """Reads a complete stream.

    Raises:
        InternalError: it is none, or says that the answer failed.
    """
    chunks = [orjson.loads(line) for line in _data_lines(b"".join(exchange.pieces))]
    if not chunks:
        raise InternalError("a stream of the benchmark had no chunk: see the logs")
    failed = [chunk["error"] for chunk in chunks if "error" in chunk]
    if failed:
        raise InternalError(f"an answer of the benchmark failed: {failed[0]}; see the logs")
    texts = [
        text
        for chunk in chunks
        for choice in chunk["choices"]
        if (text := choice["delta"].get("content"))
    ]
    last = chunks[-1]
    return Answer(
        text="".join(texts),
        completion_tokens=last["usage"]["completion_tokens"],
        phases_ms=last["tandem"]["phases_ms"],
        frames=len(texts),
    )


def _data_lines(raw: bytes) -> list[bytes]:
    """The JSON of every frame before [DONE].

    Raises:
        InternalError: the stream ends without it.
    """
    frames = _body(raw).split(b"\n\n")
    lines = [frame.removeprefix(b"data: ") for frame in frames if frame.startswith(b"data: ")]
    if not lines or lines.pop() != b"[DONE]":
        raise InternalError("a stream of the benchmark ended without [DONE]: see the logs")
    return lines


def _body(raw: bytes) -> bytes:
    """What a chunked response carries."""
    at = raw.index(_HEAD_END) + len(_HEAD_END)
    parts: list[bytes] = []
    while True:
        line_end = raw.index(b"\r\n", at)
        size = int(raw[at:line_end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
