"""The README's commands for a client made from the protos, against a gateway."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.gateway_rig import DEFAULT_ANSWER, Rig

ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str) -> list[str]:
    """Code of the section on gRPC clients."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("### gRPC clients", 1)[1].split("\n### ", 1)[0]
    return re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)


async def output(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a program prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_commands_for_node(rig: Rig, tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not on the path")
    (commands,) = blocks("sh")
    protos = tmp_path / "protos"
    shutil.copytree(
        ROOT / "protos",
        protos,
        ignore=shutil.ignore_patterns("node_modules", "gen", "__pycache__"),
    )
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    address = f"http://{rig.gateway.grpc_address}"
    printed = await output("bash", "-ec", commands, cwd=tmp_path, env={"TANDEM_ADDRESS": address})
    assert DEFAULT_ANSWER in printed
    assert "STOP: 19 tokens" in printed
    folder = protos / "examples" / "node"
    process = await asyncio.create_subprocess_exec(
        "node", "chat.js", "word " * 3000, cwd=folder,
        env={**os.environ, "TANDEM_ADDRESS": address}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("context_length_exceeded: ")
