"""The decode service as a process: its ready line, its exit codes, its end."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from decode_service.__main__ import main
from decode_service.app import DecodeServer
from decode_service.config import DecodeConfig
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.errors import ConfigError, ModelLoadError
from tests.support.decode_server import decode_server, write_profile
from tests.support.redis_server import RedisServer
from tests.support.waiting import until


async def test_ready_line_then_sigterm_ends_with_0(tiny_model_dir: Path) -> None:
    flags = ["--port=0", "--admin-port=0", "--kv-bytes=4000000", "--slab-bytes=4000000"]
    flags += ["--threads=1", f"--model={tiny_model_dir}", "--worker-id=d7"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "decode_service",
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), timeout=100)).decode()
        marker, _, body = line.partition(" ")
        assert marker == "TANDEM_READY"
        said = json.loads(body)
        assert (said["role"], said["worker_id"]) == ("decode", "d7")
        assert said["address"].startswith("127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        rest, logs = await asyncio.wait_for(process.communicate(), timeout=30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == ExitCode.OK, logs.decode()
    assert rest == b"", "one line on standard output, no more"
    assert b"drained" in logs


def test_a_senseless_setting_ends_with_the_config_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--lease-s=0"]) == ExitCode.CONFIG
    assert capsys.readouterr().err.startswith("tandem decode: decode setting lease_s")


async def test_a_start_that_fails_leaves_nothing_and_says_why(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    profile = write_profile(tmp_path)
    async with decode_server(tiny_model_dir, profile) as running:
        for name, address in (("port", running.address), ("admin_port", running.admin_address)):
            busy = int(address.rpartition(":")[2])
            settings = {"port": 0, "admin_port": 0, "model": str(tiny_model_dir)} | {name: busy}
            server = DecodeServer(DecodeConfig(**settings))  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=str(busy)) as caught:
                await server.start()
            assert exit_code_for(caught.value) == ExitCode.PORT_BUSY
            await server.stop()
    missing = DecodeServer(DecodeConfig(port=0, admin_port=0, model=str(tmp_path / "none")))
    with pytest.raises(ModelLoadError):
        await missing.start()
    await missing.stop()


async def test_the_card_is_published_renewed_and_withdrawn(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    redis = RedisServer()
    redis.start()
    reader = RedisDiscovery(RedisSettings(url=redis.url, poll_s=0.05), roles=["decode"])
    await reader.start()
    try:
        async with decode_server(
            tiny_model_dir, write_profile(tmp_path), redis_url=redis.url, worker_id="d1"
        ) as server:
            await until(lambda: len(reader.cards("decode")) == 1)
            (card,) = reader.cards("decode")
            assert (card.worker_id, card.address) == ("d1", server.address)
            assert card.model == server.core.identity
            assert card.free_pages == 128
            assert card.transports == ("grpc",)
            server.core.worker.table.draining = True
            await until(lambda: reader.cards("decode")[0].draining)
        await until(lambda: not reader.cards("decode"))
    finally:
        await reader.close()
        redis.stop()
