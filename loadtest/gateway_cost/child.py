"""The inside of a process that a benchmark starts: says that it is ready, ends with its parent."""

import asyncio
import json
import signal
import sys

READY = "READY "


def say_ready(**fields: str) -> None:
    """Prints the one line that the parent waits for."""
    sys.stdout.write(f"{READY}{json.dumps(fields)}\n")
    sys.stdout.flush()


async def until_told() -> None:
    """Returns on SIGTERM, SIGINT, or when the parent's end of standard input is closed."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    transport, _ = await loop.connect_read_pipe(lambda: _Parent(over), sys.stdin)
    await over.wait()
    transport.close()


class _Parent(asyncio.Protocol):
    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._over.set()
