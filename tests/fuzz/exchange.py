"""Raw bytes to an HTTP port, and what came back judged by what every answer must keep to."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import httptools

QUIET_S = 0.05
"""Silence after which a client of ours closes its side: the server waits for more."""

HANG_S = 60.0
"""Longest wait for the end of a connection whose other side was closed."""

LEAVE_S = 3.0
"""Patience of a client that waits for a whole answer; then it leaves, like any other client."""

BY_DESIGN = frozenset({503, 504})
"""Server errors that a healthy gateway may give: no worker has room, or the time is over."""

_ERROR_KEYS = {"message", "type", "param", "code"}
_FIRST_ERROR = 400
_FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What one connection sends."""

    pieces: tuple[bytes, ...]
    """Written one after the other, with a pause between them."""
    aborts: bool = False
    """Reset the connection right after the last piece."""
    waits: bool = False
    """Wait for a whole answer before closing."""
    max_answers: int = 1
    """More answers than this mean that the server saw a request that nobody sent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one input."""

    label: str
    """Short and countable."""
    finding: str = ""
    """What is wrong with it; empty for nothing."""


@dataclass(slots=True)
class Answer:
    """One HTTP response; also the callbacks of its parser."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False


class AnswerParser:
    """Splits what a server sent into answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, raw: bytes) -> None:
        """Parses; raises httptools.HttpParserError for what is no HTTP."""
        self._parser.feed_data(raw)

    def on_message_begin(self) -> None:
        self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answers[-1].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.answers[-1].body += body

    def on_message_complete(self) -> None:
        self.answers[-1].complete = True


async def exchange(address: str, wire: Wire, *, speaks_http: bool = True) -> Outcome:
    """Sends the pieces, closes, and judges what came back.

    Args:
        address: host:port.
        wire: what to send.
        speaks_http: whether the answer must be HTTP/1.1; else only its end is judged.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    raw, hangs, left = b"", False, False
    try:
        with contextlib.suppress(ConnectionError):
            await _write(writer, wire.pieces)
            if wire.aborts:
                writer.transport.abort()
                return Outcome("reset")
            if wire.waits:
                raw, left = await _whole(reader)
            else:
                raw, hangs = await _until_closed(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    if hangs:
        return Outcome("hangs", "the connection stayed open after its client had closed it")
    if not speaks_http:
        return Outcome("answered" if raw else "closed")
    return Outcome("left") if left else judge(raw, max_answers=wire.max_answers)


async def _write(writer: asyncio.StreamWriter, pieces: tuple[bytes, ...]) -> None:
    for index, piece in enumerate(pieces):
        if index:
            await asyncio.sleep(0.002)
        writer.write(piece)
        await writer.drain()


async def _whole(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    raw = bytearray()
    try:
        async with asyncio.timeout(LEAVE_S):
            while piece := await reader.read(65536):
                raw += piece
    except TimeoutError:
        return bytes(raw), True
    return bytes(raw), False


async def _until_closed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bytes, bool]:
    raw = bytearray()
    try:
        async with asyncio.timeout(QUIET_S):
            while piece := await reader.read(65536):
                raw += piece
            return bytes(raw), False
    except TimeoutError:
        writer.write_eof()
    try:
        async with asyncio.timeout(HANG_S):
            while piece := await reader.read(65536):
                raw += piece
    except TimeoutError:
        return bytes(raw), True
    return bytes(raw), False


def judge(raw: bytes, *, max_answers: int) -> Outcome:
    """What the answers say, and whether each is one that a client can rely on."""
    if not raw:
        return Outcome("closed")
    parser = AnswerParser()
    try:
        parser.feed(raw)
    except httptools.HttpParserError as error:
        return Outcome("garbage", f"the answer is not HTTP ({error}): {raw[:80]!r}")
    finals = [answer for answer in parser.answers if answer.status >= 200]
    label = "+".join(str(answer.status) for answer in finals[:3]) or "closed"
    if len(finals) > max_answers:
        return Outcome(label, f"{len(finals)} answers to at most {max_answers} requests")
    for answer in finals:
        wrong = fault(answer)
        if wrong:
            return Outcome(label, wrong)
    return Outcome(label)


def fault(answer: Answer) -> str:
    """What is wrong with an answer; empty for nothing."""
    status = answer.status
    if status >= _FIRST_SERVER_ERROR and status not in BY_DESIGN:
        return f"status {status}: {answer.body[:300]!r}"
    if not answer.complete:
        return ""  # the client left before the rest
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return _frame_fault(answer.body)
    if kind.startswith("application/json"):
        return _json_fault(answer.body, error=status >= _FIRST_ERROR)
    if status >= _FIRST_ERROR and answer.body:
        return f"an error of {status} that is no JSON: {answer.body[:80]!r}"
    return ""


def _frame_fault(body: bytes) -> str:
    for frame in body.decode("utf-8").split("\n\n"):
        data = frame.removeprefix("data: ")
        if data not in (frame, "[DONE]"):
            wrong = _json_fault(data.encode(), error='"error"' in data[:10])
            if wrong:
                return f"in a frame: {wrong}"
    return ""


def _json_fault(body: bytes, *, error: bool) -> str:
    try:
        parsed = json.loads(body, parse_constant=_refused)
    except (ValueError, RecursionError) as broken:
        return f"no JSON ({broken}): {body[:80]!r}"
    if not error or (isinstance(parsed, dict) and parsed.get("status") == "not_ready"):
        return ""
    content = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(content, dict) or set(content) != _ERROR_KEYS:
        return f"not the error shape: {body[:200]!r}"
    if not all(isinstance(content[key], str) and content[key] for key in ("message", "code")):
        return f"message or code is no text: {body[:200]!r}"
    if content["code"] == "internal_error":
        return f"a defect: {body[:300]!r}"
    return ""


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
