"""What the HTTP server refuses by itself is JSON in the one error shape, and bounded."""

import asyncio
import contextlib
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shared.telemetry import http_protocol
from shared.telemetry.http_protocol import MAX_HEAD_BYTES
from shared.telemetry.http_server import HttpServer


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
async def server():
    app = Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])
    server = HttpServer(app, host="127.0.0.1", port=0, grace_s=1.0)
    await server.start()
    yield server
    await server.stop()


async def answer_to(server: HttpServer, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the first answer to raw bytes."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        with contextlib.suppress(ConnectionError):  # refused while this side still writes
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            assert await reader.read() == b""
        return int(lines[0].split()[1]), headers, body
    finally:
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_answered_in_json(server, raw: bytes) -> None:
    status, headers, body = await answer_to(server, raw)
    assert (status, headers["content-type"]) == (400, "application/json")
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_http_request"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n"],
        [b"GET / HTTP/1.1\r\nhost: x\r\nx: ", *([b"a" * MAX_HEAD_BYTES] * 20)],
        [b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n"],
        [b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 5) + b"\r\n"],
    ],
    ids=["one-header", "endless-header", "long-url", "many-headers"],
)
async def test_a_head_that_is_too_large_is_431(server, pieces: list[bytes]) -> None:
    status, headers, body = await answer_to(server, *pieces)
    assert (status, headers["content-type"]) == (431, "application/json")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


async def test_endless_bytes_inside_a_begun_request_end_the_connection(server) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;"
    try:
        with contextlib.suppress(ConnectionError):  # it may be closed while this side still writes
            for piece in [head, *([b"e" * MAX_HEAD_BYTES] * 20)]:
                writer.write(piece)
                await writer.drain()
            assert await reader.read() == b""
    finally:
        writer.close()


async def test_a_head_just_under_the_limit_and_a_large_body_pass(server) -> None:
    headers = {"x": "a" * (MAX_HEAD_BYTES - 1024)}
    async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
        for _ in range(2):  # the count begins anew with each request of a connection
            answer = await client.post("/", headers=headers, content=b"b" * 300_000)
            assert (answer.status_code, answer.text) == (200, "300000")


async def test_a_stalled_head_is_408(server, monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    status, _, body = await answer_to(server, b"GET / HTT")
    assert status == 408
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def test_an_idle_connection_outlives_the_head_timeout(server, monkeypatch) -> None:
    async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
        monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
        assert (await client.get("/")).status_code == 200
        reader, writer = await asyncio.open_connection(server.host, server.port)
        await reader.readuntil(b"\r\n\r\n")  # another connection was cut off meanwhile
        writer.close()
        assert (await client.get("/")).status_code == 200


async def test_empty_lines_between_requests_do_not_hold_a_connection(server, monkeypatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    try:
        for _ in range(2):  # the second one comes after the empty lines, and is served
            writer.write(request)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"0"
            writer.write(b"\r\n\r\n")
        assert b" 408 " in await reader.readuntil(b"\r\n")
        await reader.read()  # the end
    finally:
        writer.close()


async def test_a_client_that_leaves_is_missed_by_each_of_its_requests() -> None:
    """Also by one that is answered while others wait behind it on the same connection."""
    begun, missed = asyncio.Event(), asyncio.Event()

    async def waits(_scope, receive, _send) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        missed.set()

    server = HttpServer(waits, host="127.0.0.1", port=0, grace_s=1.0)
    await server.start()
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    await begun.wait()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(20):
        await missed.wait()
    await server.stop()
