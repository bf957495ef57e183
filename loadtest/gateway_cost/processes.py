"""The processes of one run, and what processor time they use."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from shared.errors import UnavailableError

READY_S = 60.0
"""How long a process may take to be ready."""

_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """A started process."""

    pid: int
    """Its id."""
    ready: Mapping[str, str]
    """What its ready line says."""

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time that a process, or this one, has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def running(command: Sequence[str], *, log: Path) -> AsyncIterator[Running]:
    """Starts a command that prints one ready line, `WORD {JSON}`; ends it with the block.

    Args:
        command: program and arguments.
        log: takes its standard error.

    Raises:
        UnavailableError: it ended or stayed silent instead.
    """
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Running(process.pid, await _ready_line(process, log))
    finally:
        await _end(process)


async def _ready_line(process: asyncio.subprocess.Process, log: Path) -> dict[str, str]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(READY_S):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        line = ""
    _, _, fields = line.partition(" ")
    if not fields:
        raise UnavailableError(
            f"a process of the benchmark was not ready within {READY_S:g} s; its last line: "
            f"{await asyncio.to_thread(_last_line, log)}"
        )
    found: dict[str, str] = json.loads(fields)
    return found


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
