"""The gateway as a process, and its discovery in a real Redis."""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.__main__ import main
from shared.config.exit_codes import ExitCode
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.telemetry.ports import bind_socket
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig, until
from tests.support.simulated_workers import IDENTITY


@asynccontextmanager
async def gateway_process(
    folder: Path, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Starts `python -m gateway` on free ports and reads its ready line."""
    command = [sys.executable, "-m", "gateway", "--port", "0", "--grpc-port", "0"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--admin-port",
        "0",
        "--model-dir",
        str(folder),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("TANDEM_READY "), line
        yield process, json.loads(line.removeprefix("TANDEM_READY "))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_process_serves_and_drains(rig: Rig, folder: Path) -> None:
    prefill, decode = rig.prefills[0].address, rig.decodes[0].address
    flags = ("--prefill-workers", prefill, "--decode-workers", decode)
    async with gateway_process(folder, *flags) as (process, ready):
        assert set(ready) == {"role", "worker_id", "rest", "grpc", "admin"}
        async with httpx.AsyncClient(base_url=f"http://{ready['rest']}", timeout=10) as http:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            assert answer["choices"][0]["message"]["content"] == DEFAULT_ANSWER
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 15)
        assert process.returncode == 0
        assert b"Traceback" not in errors
        assert b'"draining"' in errors


async def test_second_signal_ends_at_once(rig: Rig, folder: Path) -> None:
    rig.prefills[0].plan.at("started", 60.0)
    flags = ("--prefill-workers", rig.prefills[0].address)
    decode = ("--decode-workers", rig.decodes[0].address)
    async with gateway_process(folder, *flags, *decode) as (process, ready):
        url = f"http://{ready['rest']}/v1/completions"
        async with httpx.AsyncClient(timeout=10) as http:
            asked = asyncio.create_task(http.post(url, json={"prompt": "a"}))
            await rig.simulation.seen("p0", "Prefill")
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert process.returncode is None
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 5) == ExitCode.FAILURE
            with pytest.raises(httpx.HTTPError):
                await asked


def test_exit_codes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = ["--model-dir", str(tmp_path), "--port", "0", "--grpc-port", "0"]
    assert main([*missing, "--admin-port", "0"]) == ExitCode.MODEL_LOAD
    assert "tokenizer.json" in capsys.readouterr().err
    assert main(["--balancer", "nobody"]) == ExitCode.CONFIG
    assert main(["--keepalive-s", "0"]) == ExitCode.CONFIG
    sock = bind_socket("127.0.0.1", 0)
    sock.listen()
    busy = ["--model-dir", str(folder), "--admin-port", str(sock.getsockname()[1])]
    assert main([*busy, "--port", "0", "--grpc-port", "0"]) == ExitCode.PORT_BUSY
    sock.close()


@asynccontextmanager
async def redis_server() -> AsyncIterator[str]:
    """A real server on a free port."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    sock = bind_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    sock.close()
    flags = ("--port", str(port), "--save", "", "--appendonly", "no")
    process = await asyncio.create_subprocess_exec(
        program, *flags, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_workers_from_redis(folder: Path) -> None:
    async with (
        redis_server() as url,
        running_rig(folder, redis_url=url) as rig,
    ):
        assert (await rig.chat()).status_code == 503
        publishers = []
        for worker in (*rig.prefills, *rig.decodes):
            publisher = RedisDiscovery(RedisSettings(url=url))
            await publisher.start()
            await publisher.publish(
                WorkerCard(
                    worker_id=worker.worker_id,
                    role=worker.role,
                    address=worker.address,
                    incarnation="1",
                    model=IDENTITY,
                    max_model_len=1024,
                )
            )
            publishers.append(publisher)

        async def ready() -> bool:
            return (await rig.http.get("/health/ready")).status_code == 200

        await until(ready)
        body = (await rig.http.get("/health/ready")).json()
        assert (body["discovery"], body["registry"]) == ("redis", "ok")
        assert (await rig.chat()).json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
        await publishers[0].close()

        async def gone() -> bool:
            return not await ready()

        await until(gone)
        await publishers[1].close()
