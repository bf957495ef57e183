"""A role in a process of its own that a test may kill at any moment.

Processes are forked from a server that has imported the engines and run nothing, so that each is
there in well under a second.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tests.support.waiting import until

START_S = 60.0
_FREE = {"port": 0, "admin_port": 0}


@dataclass
class RoleChild:
    """One that is ready."""

    process: BaseProcess
    address: str
    """Where it serves: gRPC of a worker, REST of a gateway."""

    def kill(self) -> None:
        """SIGKILL: it says no more word; a second time is fine."""
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # reaped, and not yet known to be dead here
            os.kill(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP: it lives, keeps its connections and says nothing."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT after `stop`."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    @property
    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self.process.is_alive()


@contextmanager
def role_children() -> "Iterator[multiprocessing.context.ForkServerContext]":
    """What `role_child` forks from; to be opened once a module, since it imports the engines."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["prefill_service.app", "decode_service.app", "gateway.app", "tests.support.role_child"]
    )
    try:
        yield context
    finally:
        # It would live, with all it imported, until the last test of the run.
        server: Any = forkserver._forkserver
        if server._forkserver_pid is not None:
            os.kill(server._forkserver_pid, signal.SIGKILL)  # it has nothing to put in order
        server._stop()


@contextmanager
def role_child(
    context: "multiprocessing.context.ForkServerContext", role: str, **settings: Any
) -> Iterator[RoleChild]:
    """A ready prefill, decode or gateway process; killed at the end.

    Args:
        context: see `role_children`.
        role: which.
        settings: of the role; ports are free ones.
    """
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(role, settings, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(START_S), f"{role} is not ready in {START_S} s"
        yield RoleChild(process, ours.recv())
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


@asynccontextmanager
async def role_beside(
    context: "multiprocessing.context.ForkServerContext", role: str, **settings: Any
) -> AsyncIterator[RoleChild]:
    """`role_child` for one that needs others, which this loop serves, before it is ready."""
    with ExitStack() as stack:
        starting = role_child(context, role, **settings)
        yield await asyncio.to_thread(stack.enter_context, starting)


def _run(role: str, settings: dict[str, Any], pipe: Connection) -> None:
    asyncio.run(_serve(role, settings, pipe))


async def _serve(role: str, settings: dict[str, Any], pipe: Connection) -> None:
    address, close = await _STARTERS[role](settings)
    pipe.send(address)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)  # the test's process is gone
    await ended.wait()
    await close()


async def _prefill(settings: dict[str, Any]) -> tuple[str, Any]:
    from prefill_service.app import PrefillApp
    from prefill_service.config import PrefillConfig

    app = PrefillApp(PrefillConfig(**(_FREE | {"threads": 1} | settings)))
    await app.start()
    return app.address, app.close


async def _decode(settings: dict[str, Any]) -> tuple[str, Any]:
    from decode_service.app import DecodeServer
    from decode_service.config import DecodeConfig
    from tests.support.decode_server import local_prefill

    sizes = {"pages_front": 64, "pages_rest": 64, "slab_bytes": 1 << 20, "threads": 1}
    config = DecodeConfig(**(_FREE | sizes | settings))
    server = DecodeServer(config, local=local_prefill(config))
    await server.start()
    return server.address, server.stop


async def _gateway(settings: dict[str, Any]) -> tuple[str, Any]:
    from gateway.app import Gateway
    from gateway.config import GatewayConfig

    gateway = Gateway(GatewayConfig(**(_FREE | {"grpc_port": 0} | settings)))
    await gateway.start()
    await until(lambda: gateway.workers.missing() is None)
    return gateway.rest_address, gateway.close


_STARTERS = {"prefill": _prefill, "decode": _decode, "gateway": _gateway}
