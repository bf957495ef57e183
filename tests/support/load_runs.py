"""Runs of the load suite in processes of their own, as its users start them."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT

RUN = ("-m", "loadtest.load", "run")


async def started(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a Python program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("LOCUST_")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()


def summary_in(folder: Path) -> dict[str, Any]:
    """What a run wrote."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def requests_in(folder: Path) -> list[dict[str, Any]]:
    """One object a request, in order of their ends."""
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
