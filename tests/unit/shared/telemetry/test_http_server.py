"""The HTTP server that all roles share."""

import asyncio
import socket

import pytest
from starlette.responses import PlainTextResponse

from shared.telemetry.http_protocol import BoundedHttpProtocol
from shared.telemetry.http_server import HttpServer


async def test_no_token_waits_for_the_acknowledgement_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: list[asyncio.BaseTransport] = []
    made = BoundedHttpProtocol.connection_made

    def seen(self: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        accepted.append(transport)
        made(self, transport)

    monkeypatch.setattr(BoundedHttpProtocol, "connection_made", seen)
    server = HttpServer(PlainTextResponse("here"), host="127.0.0.1", port=0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    option = accepted[0].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    await writer.wait_closed()
    await server.stop()
    assert option == 1
