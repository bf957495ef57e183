"""One role as a child process: starts it, reads its lines, waits for readiness, ends it."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deploy.launch import role_environment, supervised_command
from deploy.ready import ReadyLine, parse_ready
from shared.config.exit_codes import ExitCode
from shared.errors import (
    ConfigError,
    DeadlineError,
    InternalError,
    ModelLoadError,
    TandemError,
    UnavailableError,
)

LineSink = Callable[[str, str], None]
"""Takes a role's name and one line of its log."""

_TAIL_LINES = 20
_LINE_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """What to start."""

    role: str
    """prefill, decode or gateway."""
    name: str
    """The name in log lines and messages, for example `prefill-0`."""
    arguments: tuple[str, ...]
    """Flags of the role."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings with secrets: every user of the machine can read a command line."""


def error_of_exit(name: str, returncode: int, tail: Sequence[str]) -> TandemError:
    """The error that stands for a role's unexpected end; it maps back to the same exit code."""
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    last = tail[-1].strip() if tail else "it wrote nothing"
    message = f"{name} ended with {how}; its last line: {last}; the log above has the cause"
    if returncode == ExitCode.MODEL_LOAD:
        return ModelLoadError(message)
    codes = {ExitCode.NO_DEVICE: "no_device", ExitCode.PORT_BUSY: "port_in_use"}
    if returncode in codes:
        return ConfigError(message, code=codes[ExitCode(returncode)])
    if returncode in {ExitCode.CONFIG, ExitCode.USAGE}:
        return ConfigError(message)
    return UnavailableError(message)


class RoleProcess:
    """A started role."""

    def __init__(
        self, spec: RoleSpec, process: asyncio.subprocess.Process, *, on_line: LineSink
    ) -> None:
        self.spec = spec
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = process
        self._on_line = on_line
        self._ready: asyncio.Future[ReadyLine] = asyncio.get_running_loop().create_future()
        self._readers = [
            asyncio.create_task(self._read(stream))
            for stream in (process.stdout, process.stderr)
            if stream is not None
        ]

    @classmethod
    async def start(cls, spec: RoleSpec, *, on_line: LineSink) -> "RoleProcess":
        """Starts it in a session of its own: a terminal's Ctrl-C reaches the supervisor alone."""
        process = await asyncio.create_subprocess_exec(
            *supervised_command(spec.role, spec.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=role_environment({**os.environ, **spec.environment}),
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        return cls(spec, process, on_line=on_line)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def wait_ready(self, timeout_s: float) -> ReadyLine:
        """Waits for the ready line.

        Raises:
            TandemError: the role ended first (`error_of_exit`) or took too long.
        """
        ended = asyncio.create_task(self.wait_ended())
        try:
            either: set[asyncio.Future[ReadyLine] | asyncio.Task[int]] = {self._ready, ended}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not ended.done():
                ended.cancel()
        if self._ready.done():
            return self._ready.result()
        if ended.done() and not ended.cancelled():
            raise error_of_exit(self.spec.name, ended.result(), list(self.tail))
        raise DeadlineError(
            f"{self.spec.name} was not ready after {timeout_s:g} s: a large model or a slow disk "
            "may need more; "
            "raise --ready-timeout-s or read its log"
        )

    async def wait_ended(self) -> int:
        """Waits for the end of process and output; the exit code, negative for a signal."""
        returncode = await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        return returncode

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing when the process is over."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def stop(self, drain_timeout_s: float) -> int:
        """Asks it to drain and waits; kills it when that takes longer than `drain_timeout_s`."""
        if self.running:
            self.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait_ended(), drain_timeout_s)
        except TimeoutError:
            self._on_line(
                self.spec.name,
                f"not drained after {drain_timeout_s:g} s and killed; requests were cut",
            )
            self.signal(signal.SIGKILL)
            return await self.wait_ended()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            try:
                ready = parse_ready(line)
            except InternalError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                continue
            if ready is None:
                self.tail.append(line)
                self._on_line(self.spec.name, line)
            elif not self._ready.done():
                self._ready.set_result(ready)
