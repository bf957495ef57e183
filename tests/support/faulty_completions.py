"""A server of completions that answers each request as the next step of a list says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson

Step = tuple[str, Sequence[object], bool]
"""Status line, frames of the stream, and whether the body is ended as HTTP wants it."""

OK = "200 OK"
_PROPS = {"model": "faulty", "vocab_size": 100}


def text(value: str | None, *, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": value or "", "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
WELL: Step = (OK, [text("a"), text("b"), text(None, finish="length"), USAGE, "[DONE]"], True)


@asynccontextmanager
async def faulty_completions(steps: Sequence[Step]) -> AsyncIterator[str]:
    """Serves on a free port; steps repeat in order. Gives the server's URL."""
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        try:
            path = await _request_path(reader)
            if path == "/v1/completions":
                step = steps[asked % len(steps)]
                asked += 1
            else:
                step = (OK, [_control(path)], True)
            writer.write(_response(step, stream=path == "/v1/completions"))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"http://{host}:{port}"


def _control(path: str) -> dict[str, object]:
    bodies: dict[str, dict[str, object]] = {
        "/props": _PROPS,
        "/version": {"version": "0"},
        "/tokenize": {"tokens": [7, 8]},
    }
    return bodies[path]


async def _request_path(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            await reader.readexactly(int(value))
    return head.split(" ")[1]


def _response(step: Step, *, stream: bool) -> bytes:
    status, values, ended = step
    frames = [_frame(value) if stream else orjson.dumps(value) for value in values]
    body = b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames)
    head = f"HTTP/1.1 {status}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + body + (b"0\r\n\r\n" if ended else b"")


def _frame(value: object) -> bytes:
    data = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return b"data: " + data + b"\n\n"
