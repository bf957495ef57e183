"""Bodies have a bound together, whatever is in them and however slowly they come."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.config import GatewayConfig
from gateway.routes import body
from shared.errors import ConfigError
from tests.support.gateway_rig import Rig, running_rig, until

ONE, ALL = 40_000, 100_000
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize")


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder, max_body_bytes=ONE, max_bodies_bytes=ALL) as running:
        yield running


async def holds(rig: Rig, size: int) -> None:
    """Waits until so many bytes are held."""

    async def exactly() -> bool:
        return rig.gateway._bodies.held_bytes == size

    await until(exactly)


async def slow_upload(
    rig: Rig, size: int, *, path: str = PATHS[0]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that sends so much of its body, and no more."""
    host, _, port = rig.gateway.rest_address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {ONE}\r\n\r\n"
    writer.write(head.encode() + b" " * size)
    await writer.drain()
    return reader, writer


def body_of(size: int) -> bytes:
    """A short prompt in a long body."""
    fields = {"model": "simulated", "prompt": "hi", "input": "hi", "user": ""}
    fields["user"] = "u" * (size - len(json.dumps(fields)))
    return json.dumps(fields).encode()


@pytest.mark.parametrize("path", PATHS)
async def test_uploads_that_stall_leave_no_room_until_they_are_gone(rig: Rig, path: str) -> None:
    slow = [await slow_upload(rig, 35_000) for _ in range(2)]
    await holds(rig, 70_000)
    refused = await rig.http.post(path, content=body_of(39_000))
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await rig.complete(prompt="hi")).status_code == 200, "small ones fit"
    for _, writer in slow:
        writer.close()
        await writer.wait_closed()
    await holds(rig, 0)
    assert (await rig.http.post(path, content=body_of(39_000))).status_code != 429


@pytest.mark.parametrize("path", PATHS)
async def test_an_upload_that_never_ends_is_ended(
    rig: Rig, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "UPLOAD_S", 0.05)
    reader, writer = await slow_upload(rig, 500, path=path)
    answer = (await reader.read()).decode()
    assert answer.startswith("HTTP/1.1 408 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    writer.close()
    await writer.wait_closed()
    await holds(rig, 0)


async def test_a_long_body_counts_until_its_answer_ends(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.prefills[0].plan.at("first_token", gate, times=3)
    waiting = [
        asyncio.create_task(rig.http.post("/v1/completions", content=body_of(33_000)))
        for _ in range(3)
    ]
    await holds(rig, 99_000)
    refused = await rig.complete(prompt="hi", user="u" * 2_000)
    assert refused.status_code == 429
    metrics = (await rig.http.get("/metrics")).text
    assert 'tandem_rejected_total{reason="queue_full"} 1.0' in metrics
    gate.set()
    answers: list[httpx.Response] = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * 3
    await holds(rig, 0)


def test_room_for_less_than_one_body_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="max_bodies_bytes"):
        GatewayConfig(max_body_bytes=10, max_bodies_bytes=9)
