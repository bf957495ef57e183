"""The requests of the README, as they stand there, to a running pair."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.full_stack import Stack, running_stack
from tests.support.tool_templates import TEMPLATES, with_template

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 160
"""Of the pair, in tokens: a random model answers until its context ends."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tiny_model_dir: Path, profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    folder = with_template(
        tiny_model_dir, tmp_path_factory.mktemp("pair") / "tiny", template=TEMPLATES["hermes"]
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    async with running_stack(folder, profile, model_name="smollm2") as started:
        yield started


def blocks(language: str, *, containing: str) -> list[str]:
    """Code of the README, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [block for block in found if containing in block]


def at(stack: Stack, code: str) -> str:
    """The code with the pair's addresses in place of the documented ones."""
    rest, rpc = stack.gateway.rest_address, stack.gateway.grpc_address
    return code.replace("127.0.0.1:8000", rest).replace("127.0.0.1:8001", rpc)


async def run(*command: str, given: str) -> str:
    """Standard output of a program that reads `given`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await process.communicate(given.encode())
    assert process.returncode == 0, complaint.decode()
    return out.decode()


async def test_python_blocks_run_in_order(stack: Stack) -> None:
    """One after the other in one program: a later one may use the client of an earlier one."""
    code = blocks("python", containing="")
    for module in ("openai", "langchain_openai", "litellm", "gateway.sdk"):
        assert any(f"from {module} " in b or f"import {module}\n" in b for b in code), module
    marks = [f'\nprint("\\n== {number}")\n' for number in range(len(code))]
    program = "".join(block + mark for block, mark in zip(code, marks, strict=True))
    printed = await run(sys.executable, "-", given=at(stack, program))
    parts = re.split(r"\n== \d+\n", printed)
    assert len(parts) == len(code) + 1
    assert all(part.strip() for part in parts[:-1])
    assert "'kept_tokens': " in parts[0]
    assert "pair: " in printed


async def test_curl_blocks(stack: Stack) -> None:
    code = blocks("sh", containing="curl -N http")
    assert code
    for block in code:
        printed = await run("bash", "-e", "-s", given=at(stack, block))
        assert printed.endswith("data: [DONE]\n\n")
        assert '"tandem":{' in printed
