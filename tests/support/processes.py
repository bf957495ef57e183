"""`tandem` as whole processes, for the e2e tests."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).resolve().parents[2]
TANDEM = (sys.executable, "-c", "from deploy.cli import main; main()")
FREE_PORTS = tuple(
    part
    for name in (
        "rest-port",
        "grpc-port",
        "gateway-admin-port",
        "prefill-port",
        "decode-port",
        "prefill-admin-port",
        "decode-admin-port",
    )
    for part in (f"--{name}", "0")
)
READY_S = 120.0


def tandem_environment() -> dict[str, str]:
    """One thread a process: several test processes share two cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run_tandem(*arguments: str, timeout_s: float = 90.0) -> "subprocess.CompletedProcess[str]":
    """A `tandem` command that ends by itself."""
    return subprocess.run(
        [*TANDEM, *arguments],
        cwd=ROOT,
        env=tandem_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class UpProcess:
    """A running `tandem up`; `environment` adds variables."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [
                *TANDEM,
                "up",
                *FREE_PORTS,
                "--prefill-threads",
                "1",
                "--decode-threads",
                "1",
                *arguments,
            ],
            cwd=ROOT,
            env={**tandem_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.out),
                (self.process.stderr, self.err),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def url(self) -> str:
        """Base URL of REST, without /v1."""
        return self._found(r"REST +(http://\S+)/v1", self.out)

    @property
    def grpc(self) -> str:
        """Address of the gateway's gRPC."""
        return self._found(r"gRPC +(\S+) ", self.out)

    def worker(self, name: str) -> str:
        """gRPC address of a worker, for example of `decode-0`."""
        return self._found(rf"{name} ready at (\S+)", self.err)

    def pid(self, module: str) -> int:
        """Process id of the role that runs a module."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        pid: int = next(child.pid for child in children if module in child.cmdline())
        return pid

    def wait_ready(self) -> None:
        """Waits for the banner."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if any("tandem chat" in line for line in self.out):
                return
            assert self.process.poll() is None, self.log()
            time.sleep(0.05)
        raise AssertionError(f"not ready in {READY_S} s\n{self.log()}")

    def wait_end(self, timeout_s: float = 60.0) -> int:
        """Exit code; all output is read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def stop(self) -> int:
        """Drains it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait_end()
        except subprocess.TimeoutExpired:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self.process.kill()
            raise

    def log(self) -> str:
        """All output so far."""
        return "\n".join([*self.out, *self.err])

    def _found(self, pattern: str, lines: Sequence[str]) -> str:
        match = re.search(pattern, "\n".join(lines))
        assert match, f"{pattern} not in\n{self.log()}"
        return match.group(1)

    @staticmethod
    def _read(stream: "IO[str] | None", lines: list[str]) -> None:
        assert stream is not None
        with stream:
            lines.extend(line.rstrip("\n") for line in stream)


@contextlib.contextmanager
def running_up(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[UpProcess]:
    """A ready `tandem up` that is drained at the end."""
    up = UpProcess(*arguments, environment=environment)
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()
