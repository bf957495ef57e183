"""No log line of any role holds what a client wrote or was answered, even at debug level."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import httpx
import pytest
import structlog

from protos.tandem.v1 import common_pb2, inference_pb2
from shared.telemetry.logs import configure_logging
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack

MARKER = "zebra quartz hippocrene lagoon"
PROMPT = f"{MARKER}. " * 8


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that this process logs, from every library."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    configure_logging(role="test", level="debug", log_format="json", stream=out)
    clients = [logging.getLogger(name) for name in ("httpx", "httpcore")]  # this test's own
    for client in clients:
        client.setLevel(logging.WARNING)
    yield out
    for client in clients:
        client.setLevel(logging.NOTSET)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
async def stack(tiny_model_dir: Path, tmp_path: Path, log: io.StringIO) -> AsyncIterator[Stack]:
    async with running_stack(tiny_model_dir, write_profile(tmp_path)) as started:
        yield started


async def rest_requests(http: httpx.AsyncClient) -> list[str]:
    """Good and bad requests with the marker everywhere a client can put it; the answers."""
    message = {"role": "user", "content": PROMPT}
    limits = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    good = await http.post("/v1/completions", json={"prompt": PROMPT, **limits})
    assert good.status_code == 200, good.text
    answers = [good.json()["choices"][0]["text"]]
    traced = {"tandem": {"trace": True, "mode": "both"}}
    again = await http.post("/v1/completions", json={"prompt": PROMPT, **limits, **traced})
    assert again.status_code == 200, again.text
    streamed = await http.post("/v1/completions", json={"prompt": PROMPT, "stream": True, **limits})
    assert streamed.status_code == 200
    await http.post("/v1/chat/completions", json={"messages": [message], **limits})
    for bad in (
        {"prompt": PROMPT, "stop": [MARKER], **limits, "temperature": MARKER},
        {"prompt": {MARKER: MARKER}},
        {"prompt": PROMPT, MARKER: MARKER, **limits},
        {"prompt": PROMPT * 2_000},
        {"prompt": PROMPT, "model": MARKER},
        {"messages": [{"role": MARKER, "content": PROMPT}]},
        {"messages": [message], "response_format": {"type": MARKER}},
    ):
        for path in ("/v1/completions", "/v1/chat/completions"):
            await http.post(path, json=bad)
    await http.post("/v1/completions", content=f'{{"prompt": "{MARKER}'.encode())
    await http.get(f"/{MARKER}", headers={"x-request-id": MARKER, "authorization": MARKER})
    return answers


async def leaving_clients(http: httpx.AsyncClient) -> None:
    """Clients that go away in the middle."""
    body = {"prompt": PROMPT, "max_tokens": 100, "stream": True, "ignore_eos": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/completions", json={**body, "stream": False}, timeout=0.02)


async def grpc_requests(stack: Stack) -> list[str]:
    """One that is answered and one that is refused."""
    sampling = common_pb2.SamplingParams(temperature=0)
    stop = common_pb2.StopConditions(max_tokens=6, strings=["lagoon lagoon"])
    request = inference_pb2.GenerateRequest(
        text=PROMPT, sampling=sampling, stop=stop, ignore_eos=True
    )
    text, _ = await stack.generate(request)
    request.model = MARKER
    with pytest.raises(grpc.aio.AioRpcError):
        await stack.generate(request)
    return [text]


async def test_nothing_that_clients_write_is_logged(stack: Stack, log: io.StringIO) -> None:
    answers = await rest_requests(stack.http)
    await leaving_clients(stack.http)
    answers += await grpc_requests(stack)
    await asyncio.sleep(0.2)  # what is logged at the end of a cancelled request
    lines = log.getvalue().splitlines()
    assert len(lines) > 20
    assert any(json.loads(line)["event"] == "request done" for line in lines)
    for word in {*MARKER.split(), *(answer for answer in answers if len(answer) > 3)}:
        found = [line[:300] for line in lines if word in line]
        assert not found, (word, found[:3])


async def test_the_marker_would_be_found(log: io.StringIO) -> None:
    structlog.get_logger("x").debug("a careless line", body=PROMPT)
    assert "zebra" in log.getvalue()
