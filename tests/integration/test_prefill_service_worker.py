"""The worker around its engine: control, health, admin pages, discovery, process."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from prefill_service.__main__ import main
from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from protos.tandem.v1 import control_pb2, control_pb2_grpc, prefill_pb2_grpc
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.errors import ConfigError, ModelLoadError
from tests.support.prefill_worker import (
    Worker,
    decode_peers,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
)
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def worker(tiny_model_dir: Path) -> AsyncIterator[Worker]:
    async with prefill_worker(tiny_model_dir, worker_id="p7") as running:
        yield running


async def health(worker: Worker, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(worker.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def admin(worker: Worker, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://{worker.app.admin_address}{path}")


async def test_info_and_load(worker: Worker) -> None:
    stub = control_pb2_grpc.ControlServiceStub(worker.channel)
    info = await stub.GetInfo(control_pb2.GetInfoRequest())
    assert (info.worker_id, info.role) == ("p7", control_pb2.ROLE_PREFILL)
    assert (info.model.name, info.model.num_layers) == ("tiny", 6)
    assert (info.max_model_len, info.attention_backend) == (1024, "torch")
    assert list(info.transports) == ["grpc"]
    assert all(": " in line for line in info.rejected_backends)
    assert info.profile.endswith(" (not calibrated)")
    async with decode_peers(worker) as peers:
        worker.runner.gate.clear()
        calls = [
            asyncio.create_task(worker.run(prompt_request(prompt_ids(30 + i), peers)))
            for i in range(3)
        ]
        await worker.wait_load(queued_requests=2)
        load = await stub.GetLoad(control_pb2.GetLoadRequest())
        assert (load.queued_requests, load.running_requests) == (2, 1)
        assert load.queued_tokens == worker.engine.load().queued_tokens
        assert not load.draining
        worker.runner.gate.set()
        await asyncio.gather(*calls)
        load = await stub.GetLoad(control_pb2.GetLoadRequest())
        assert (load.queued_requests, load.running_requests) == (0, 0)
        assert load.held_handoffs == 3
        assert load.tokens_per_second > 0


async def test_health_follows_the_drain(worker: Worker) -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    assert await health(worker, "") == serving
    assert await health(worker, "tandem.v1.PrefillService") == serving
    assert (await admin(worker, "/health/ready")).status_code == 200
    stub = control_pb2_grpc.ControlServiceStub(worker.channel)
    await stub.Drain(control_pb2.DrainRequest())
    await worker.app.drain()
    assert await health(worker, "") != serving
    assert await health(worker, "liveness") == serving
    ready = await admin(worker, "/health/ready")
    assert (ready.status_code, ready.json()["phase"]) == (503, "draining")
    assert (await admin(worker, "/health/live")).status_code == 200
    assert (await stub.GetLoad(control_pb2.GetLoadRequest())).draining


async def test_a_stalled_engine_is_not_ready_until_it_goes_on(tiny_model_dir: Path) -> None:
    async with (
        prefill_worker(tiny_model_dir, stall_s=0.1) as worker,
        decode_peers(worker) as peers,
    ):
        worker.runner.hang.clear()
        running = asyncio.create_task(worker.run(prompt_request(prompt_ids(60), peers)))
        await worker.runner.wait_reached()
        await until(lambda: not worker.app._board.current.ready)
        ready = await admin(worker, "/health/ready")
        assert (ready.status_code, ready.json()["phase"]) == (503, "failed")
        assert await health(worker, "") != health_pb2.HealthCheckResponse.SERVING
        stub = control_pb2_grpc.ControlServiceStub(worker.channel)
        assert (await stub.GetLoad(control_pb2.GetLoadRequest())).stalled_seconds > 0.1
        worker.runner.hang.set()
        assert kinds(await running)[-1] == "PrefillSealed"
        await until(lambda: worker.app._board.current.ready)
        await worker.expect_idle()


async def test_metrics(worker: Worker) -> None:
    async with decode_peers(worker) as peers:
        events = await worker.run(prompt_request(prompt_ids(100), peers))
        assert kinds(events)[-1] == "PrefillSealed"
        text = (await admin(worker, "/metrics")).text
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert float(values["tandem_claa_tokens_in_total"]) == 100
    assert float(values["tandem_claa_tokens_kept_total"]) == events[-1].kept_tokens
    assert float(values['tandem_kv_bytes_total{transport="grpc"}']) == events[-1].kv_bytes
    assert float(values["tandem_kv_held_bytes"]) == worker.engine.load().held_bytes > 0
    assert float(values["tandem_queue_depth"]) == 0


async def test_discovery_in_redis(tiny_model_dir: Path, redis_url: str) -> None:
    reader = RedisDiscovery(RedisSettings(url=redis_url, poll_s=0.05), roles=("prefill",))
    name = "p-in-redis"

    def cards() -> list[WorkerCard]:
        return [card for card in reader.cards("prefill") if card.worker_id == name]

    await reader.start()
    try:
        async with prefill_worker(tiny_model_dir, redis_url=redis_url, worker_id=name) as worker:
            await until(lambda: bool(cards()))
            card = cards()[0]
            assert (card.address, card.max_model_len) == (worker.app.address, 1024)
            assert card.model.name == "tiny"
            worker.app.begin_drain()
            await until(lambda: cards()[0].draining)
        await until(lambda: not cards())
    finally:
        await reader.close()


async def test_a_busy_port_is_named(worker: Worker, tiny_model_dir: Path) -> None:
    port = int(worker.app.address.rpartition(":")[2])
    app = PrefillApp(PrefillConfig(port=port, admin_port=0, model=str(tiny_model_dir)))
    with pytest.raises(ConfigError) as caught:
        await app.start()
    await app.close()
    assert caught.value.error_code == "port_in_use"


async def test_a_missing_model_ends_the_start(tmp_path: Path) -> None:
    app = PrefillApp(PrefillConfig(port=0, admin_port=0, model=str(tmp_path / "nothing")))
    with pytest.raises(ModelLoadError):
        await app.start()
    await app.close()


async def test_settings_that_do_not_fit(tiny_model_dir: Path) -> None:
    base = {"port": 0, "admin_port": 0, "model": str(tiny_model_dir)}
    for extra, word in (
        ({"max_model_len": 9999}, "max_model_len"),
        ({"transports": ("carrier-pigeon",)}, "transport"),
        ({"host": "::", "redis_url": "redis://127.0.0.1:1/0"}, "advertise_address"),
    ):
        app = PrefillApp(PrefillConfig(**(base | extra)))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=word):
            await app.start()
        await app.close()


def test_config_errors_exit_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--chunk-tokens", "none"]) == 3
    assert "chunk-tokens" in capsys.readouterr().err


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


async def start_process(*flags: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "prefill_service", "--admin-port", "0", *flags)
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_process_exit_codes(taken_port: int, tiny_model_dir: Path, tmp_path: Path) -> None:
    busy = await start_process("--port", str(taken_port), "--model", str(tiny_model_dir))
    missing = await start_process("--port", "0", "--model", str(tmp_path / "nothing"))
    _, busy_log = await busy.communicate()
    _, missing_log = await missing.communicate()
    assert busy.returncode == 5, busy_log
    assert str(taken_port).encode() in busy_log
    assert missing.returncode == 6, missing_log
    for log in (busy_log, missing_log):
        assert b"Traceback" not in log


async def test_process_ready_line_and_sigterm(tiny_model_dir: Path) -> None:
    process = await start_process("--port", "0", "--model", str(tiny_model_dir))
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    fields = json.loads(line.removeprefix("TANDEM_READY "))
    assert fields["role"] == "prefill"
    async with grpc.aio.insecure_channel(fields["address"]) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        info = await stub.GetInfo(control_pb2.GetInfoRequest())
        assert info.worker_id == fields["worker_id"]
    process.send_signal(signal.SIGTERM)
    rest, log = await process.communicate()
    assert process.returncode == 0, log
    assert rest == b""
    assert b"drained" in log


async def test_a_second_signal_ends_the_process_at_once(tiny_model_dir: Path) -> None:
    flags = ("--port", "0", "--model", str(tiny_model_dir), "--reserve-wait-s", "60")
    process = await start_process(*flags)
    assert process.stdout is not None
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    address = json.loads(line.removeprefix("TANDEM_READY "))["address"]
    async with prefill_worker(tiny_model_dir) as same_model, decode_peers(same_model) as (peer,):
        peer.script.busy = -1
        async with grpc.aio.insecure_channel(address) as channel:
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            call = stub.Prefill(prompt_request(prompt_ids(30), [peer]))
            assert (await anext(aiter(call))).HasField("accepted")
            process.send_signal(signal.SIGTERM)
            while b"draining" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            call.cancel()
    assert process.returncode == 128 + signal.SIGTERM
