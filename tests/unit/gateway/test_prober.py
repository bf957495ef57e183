"""Knocking at ports: only a closed one means that a worker is gone."""

import asyncio
import socket

from gateway.clients.events import Target
from gateway.prober import Prober


class Gone:
    """Notes whom the prober buries."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def gone(self, worker_id: str) -> None:
        self.names.append(worker_id)


async def test_only_a_closed_port_counts() -> None:
    seen = Gone()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0) as server:
        listening = server.sockets[0].getsockname()[1]
        await Prober(seen).look(  # type: ignore[arg-type]
            [
                Target("dead", f"127.0.0.1:{port}"),
                Target("alive", f"127.0.0.1:{listening}"),
                Target("nowhere", "host.invalid:1"),
            ]
        )
    assert seen.names == ["dead"]
