"""An HTTP server inside the running loop that leaves signals to the process."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from shared.telemetry.certificates import Certificates, server_context
from shared.telemetry.http_protocol import BoundedHttpProtocol
from shared.telemetry.ports import bind_socket, join_address

KEEP_ALIVE_S = 75
"""How long an idle connection is kept; longer than clients do, so that they close it first."""


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening and says so."""
        await super().startup(sockets)
        self.answers.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does not touch the process's signal handlers."""
        yield


class HttpServer:
    """Serves an ASGI app from the current loop.

    Args:
        app: what to serve.
        host: interface to bind.
        port: port, or 0 for a free one.
        grace_s: how long running requests may take after `stop`.
        certificates: speak TLS with these; plain text without.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        grace_s: float = 5.0,
        certificates: Certificates | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._certificates = certificates
        self._server = _QuietServer(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(grace_s)),
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port, final after `start`."""
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Binds and begins to answer.

        Raises:
            ConfigError: code `port_in_use`.
        """
        sock = bind_socket(self.host, self.port)
        self.port = sock.getsockname()[1]
        config = self._server.config
        config.load()
        if self._certificates is not None:
            config.ssl = server_context(self._certificates)
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        answers = asyncio.create_task(self._server.answers.wait())
        await asyncio.wait({self._task, answers}, return_when=asyncio.FIRST_COMPLETED)
        answers.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Finishes running requests and ends; twice is fine."""
        self._server.should_exit = True
        task, self._task = self._task, None
        if task is not None:
            await task
