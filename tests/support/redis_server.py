"""A real redis-server on a free port, without persistence."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RedisServer:
    """Starts and stops one redis-server on the same port, with empty data each time."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "install redis-server (Debian: apt install redis-server)"
        self._program = program
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        settings = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [self._program, "--port", str(self.port), "--dir", tempfile.gettempdir(), *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a redis-server that lives as long as the session; use a namespace of your own."""
    server = RedisServer()
    server.start()
    yield server.url
    server.stop()
