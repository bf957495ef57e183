"""Clients that leave, read slowly, or wait long."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_rig import (
    DEFAULT_ANSWER,
    Rig,
    data_frames,
    joined_text,
    running_rig,
    until,
)
from tests.support.simulated_pair import SimulatedDecode, SimulatedPrefill


async def idle(rig: Rig) -> None:
    """Waits until no worker runs anything and the gateway holds nothing."""

    async def nothing_runs() -> bool:
        metrics = (await rig.http.get("/metrics")).text
        running = [worker.running for worker in (*rig.prefills, *rig.decodes)]
        return "tandem_requests_in_flight 0.0" in metrics and not any(running)

    await until(nothing_runs)


def reached(rig: Rig, phase: str) -> SimulatedPrefill | SimulatedDecode:
    prefill_phases = {"queued", "started", "first_token", "transfer"}
    return rig.prefills[0] if phase in prefill_phases else rig.decodes[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "phase", ["queued", "started", "first_token", "transfer", "accepted", "token:2"]
)
async def test_disconnect_reaches_the_workers(rig: Rig, phase: str, stream: bool) -> None:
    worker = reached(rig, phase)
    worker.plan.at(phase, 30.0)
    asked = asyncio.create_task(rig.chat(stream=stream))
    await rig.simulation.seen(worker.worker_id, "Decode" if worker.role == "decode" else "Prefill")
    await asyncio.sleep(0.1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await rig.simulation.seen(worker.worker_id, "closed")
    if worker.role == "decode":
        await rig.simulation.seen("d0", "Cancel")
    if phase != "token:2":
        await rig.simulation.seen("p0", "Cancel")
        await rig.simulation.seen("d0", "Abort")
    await idle(rig)
    metrics = (await rig.http.get("/metrics")).text
    expected = {"queued": "queue", "started": "queue"}.get(
        phase, "decode" if worker.role == "decode" else "prefill"
    )
    assert f'tandem_disconnects_total{{phase="{expected}"}} 1.0' in metrics
    assert 'code="499"' in metrics
    assert (await rig.chat()).json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER


async def test_disconnect_within_a_running_stream(rig: Rig) -> None:
    rig.simulation.token_delay_s = 0.02
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
    async with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if " world" in line:
                break
    await rig.simulation.seen("d0", "Cancel")
    await idle(rig)


async def test_pings_keep_a_long_prefill_alive(folder: Path) -> None:
    async with running_rig(folder, keepalive_s=0.1) as rig:
        rig.prefills[0].plan.at("first_token", 0.55)
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = [piece async for piece in response.aiter_raw()]
        raw = b"".join(pieces)
        assert raw.startswith(b": ping\n\n: ping\n\n")
        assert 3 <= raw.count(b": ping\n\n") <= 8
        frames = data_frames(raw)
        assert joined_text(frames) == DEFAULT_ANSWER
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_pings_between_tokens_and_an_error_after_them(folder: Path) -> None:
    async with running_rig(folder, keepalive_s=0.1, request_timeout_s=0.6) as rig:
        rig.decodes[0].plan.at("token:2", 5.0)
        frames_raw = (await rig.chat(stream=True)).content
        assert b": ping\n\n" in frames_raw
        assert data_frames(frames_raw)[-1]["error"]["code"] == "deadline_exceeded"


async def test_status_waits_for_the_first_token(rig: Rig) -> None:
    rig.prefills[0].plan.at("first_token", 0.3)
    began = asyncio.get_running_loop().time()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert asyncio.get_running_loop().time() - began >= 0.3
        await response.aread()


async def test_slow_reader_holds_the_workers_back(folder: Path) -> None:
    async with running_rig(folder) as rig:
        rig.simulation.max_model_len = 1024
        body = (
            b'{"messages": [{"role": "user", "content": "hi"}], "stream": true, "ignore_eos": true,'
            b' "logprobs": true, "top_logprobs": 20, "max_tokens": 900}'
        )
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        host, _, port = rig.gateway.rest_address.partition(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, int(port)))
        await loop.sock_sendall(sock, request + body)
        try:
            # While nobody reads, other requests are answered as ever.
            for _ in range(3):
                assert (await rig.chat()).status_code == 200
            raw = b""
            async with asyncio.timeout(20):
                while piece := await loop.sock_recv(sock, 65536):
                    raw += piece
        finally:
            sock.close()
        assert raw.rstrip().endswith(b"0")
        assert raw.count(b"data: ") > 900
        assert b"data: [DONE]" in raw


async def test_drain_lets_a_running_stream_finish(folder: Path) -> None:
    async with running_rig(folder, drain_timeout_s=5.0) as rig:
        rig.simulation.token_delay_s = 0.02
        asked = asyncio.create_task(rig.chat(stream=True))
        await rig.simulation.seen("d0", "Decode")
        await rig.gateway.drain()
        response = await asked
        assert joined_text(data_frames(response.content)) == DEFAULT_ANSWER


async def test_concurrent_requests_are_isolated(rig: Rig) -> None:
    tokenizer = rig.simulation.tokenizer

    def echo(prompt: object) -> list[int]:
        assert isinstance(prompt, list)
        return [*prompt, tokenizer.eos_ids[0]]

    rig.simulation.answer = echo
    prompts = [f"prompt number {i}" for i in range(8)]
    responses = await asyncio.gather(
        *(rig.complete(prompt=prompt, max_tokens=64) for prompt in prompts)
    )
    assert [r.json()["choices"][0]["text"] for r in responses] == prompts


async def test_broken_body_upload(rig: Rig) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        raise httpx.ReadError("gone")

    with pytest.raises(httpx.HTTPError):
        await rig.http.post("/v1/chat/completions", content=half())
    assert (await rig.chat()).status_code == 200
