"""One worker of each role and a gateway for a benchmark: started on free ports, ended after it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.cluster import Cluster, Endpoints
from deploy.config import UpConfig
from deploy.role_process import LineSink


class PairStarter:
    """Starts pairs that share a folder of logs.

    Args:
        on_line: takes what the roles print, under the name of their pair and their own.
        tell: takes one line about what happens now.
    """

    def __init__(self, *, on_line: LineSink, tell: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._tell = tell

    @asynccontextmanager
    async def running(
        self, up: UpConfig, settings_file: Path, *, name: str
    ) -> AsyncIterator[Endpoints]:
        """A started pair; its end is waited for.

        Args:
            up: model, devices and ports.
            settings_file: of the roles.
            name: in logs and lines.

        Raises:
            TandemError: a role did not start.
        """

        def on_line(role: str, line: str) -> None:
            self._on_line(f"{name}-{role}", line)

        def on_phase(text: str) -> None:
            self._tell(f"{name}: {text}")

        cluster = Cluster(up, on_line, on_phase, settings_file)
        try:
            yield await cluster.start()
        finally:
            await cluster.stop()
