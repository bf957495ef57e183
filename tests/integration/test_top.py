"""`tandem top` against a running gateway."""

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.top import run_top
from shared.errors import UnavailableError
from tests.support.gateway_rig import Rig, running_rig

ROOT = Path(__file__).resolve().parents[2]
TANDEM = [sys.executable, "-c", "from deploy.cli import main; main()"]


def console_of(file: io.StringIO) -> Console:
    return Console(file=file, width=140, force_terminal=False)


async def look(rig: Rig, **options: Any) -> str:
    file = io.StringIO()
    code = await asyncio.to_thread(run_top, url=rig.url, console=console_of(file), **options)
    assert code == 0
    return file.getvalue()


async def test_one_state_as_tables(rig: Rig) -> None:
    await rig.chat(max_tokens=4)
    text = await look(rig, once=True, as_json=False)
    for expected in ("ready", "p0", "d0", "prefill", "decode", "serving", "TTFT p50 / p95", "grpc"):
        assert expected in text
    assert "/v1/chat/completions" in text


async def test_one_state_as_json(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    await rig.chat(max_tokens=4)
    await look(rig, once=True, as_json=True)
    state = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert state["ready"] is True
    assert {worker["role"] for worker in state["workers"]} == {"prefill", "decode"}
    assert state["traffic"]["requests"] == 1
    assert state["traffic"]["ttft_ms"]["count"] == 1
    assert state["queue"]["limit_tokens"] > 0


async def test_a_gateway_without_workers_is_shown_as_it_is(folder: Path) -> None:
    async with running_rig(folder, prefills=0, decodes=0) as rig:
        text = await look(rig, once=True, as_json=False)
    assert "not ready" in text
    assert "none is known" in text


async def test_states_come_every_second_as_json_lines(rig: Rig) -> None:
    command = [*TANDEM, "top", "--json", "--url", rig.url]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=subprocess.PIPE, limit=1 << 20
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            states = [json.loads(await process.stdout.readline()) for _ in range(2)]
    finally:
        process.kill()
        await process.wait()
    assert all(state["workers"] for state in states)


async def test_nobody_there_is_an_error_with_advice(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="tandem up"):
        await asyncio.to_thread(run_top, url="http://127.0.0.1:1", once=True, as_json=False)


async def test_a_gateway_with_keys_wants_an_admin_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.json"
    made = {}
    for name, flags in (("user", []), ("boss", ["--admin"])):
        command = [*TANDEM, "key", "new", name, "--file", str(keys)]
        result = await asyncio.to_thread(
            subprocess.run,
            [*command, "--json", *flags],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        made[name] = json.loads(result.stdout)["key"]
    async with running_rig(folder, api_keys=keys) as rig:
        monkeypatch.setenv("TANDEM_API_KEY", made["user"])
        with pytest.raises(Exception, match="403"):
            await look(rig, once=True, as_json=False)
        monkeypatch.setenv("TANDEM_API_KEY", made["boss"])
        assert "p0" in await look(rig, once=True, as_json=False)
