"""The receiving process of the transfer benchmark: a slab behind every transport, told what to do.

Reads one JSON command a line on standard input and answers each with one line on standard output.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import uvloop

from loadtest.micro.transfer_parts import INCARNATION, MODEL, TOKEN
from shared.errors import StaleWriteError
from shared.kv.memory import HostMemory
from shared.kv.slab import Slab, SlabLease
from shared.kv_memory.tensor_memory import TensorMemory
from shared.rpc.server import build_server
from shared.transport import grpc_stream, nixl_wire
from shared.transport.base import SlabWindow
from shared.transport.choice import open_transports
from shared.transport.grpc_receiver import SERVICE_NAME, add_transfer_service
from shared.transport.hello import Peer
from shared.transport.nixl_receiver import NixlReceiver, add_nixl_service


class Landing:
    """Takes everything that shows the benchmark's token and fits the lease."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """Compares the token."""
        self._slab.lease(slot, generation)
        if token != TOKEN:
            raise StaleWriteError("another token than the benchmark's: something else calls here")

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        """Copies a chunk."""
        self._slab.write(slot=slot, generation=generation, offset=offset, data=data)

    def window(self, slot: int, generation: int) -> SlabWindow:
        """Where a lease lies."""
        lease = self._slab.lease(slot, generation)
        return SlabWindow(offset=lease.offset, nbytes=lease.nbytes)

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """Shows a chunk."""
        return self._slab.view(slot, generation, offset, length)

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        """Checks the lease: nobody takes what landed."""
        self._slab.view(slot, generation, offset, length)

    def heartbeat(self, slot: int, generation: int) -> None:
        """Checks the lease, which never runs out here."""
        self._slab.lease(slot, generation)

    def writer_closed(
        self,
        slot: int,
        generation: int,
        *,
        clean: bool,
        drained: bool = True,
        sums: Sequence[int] = (),
    ) -> None:
        """Nothing waits for it: the sender asks for the next lease only after its seal."""


class Receiver:
    """Answers the commands.

    Args:
        slab: the landing memory.
    """

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._lease: SlabLease | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Does one command."""
        kind = command["do"]
        if kind == "grant":
            return self._grant(command["bytes"])
        assert self._lease is not None, "granted before"
        lease, self._lease = self._lease, None
        landed = self._slab.view(lease.slot, lease.generation, 0, lease.nbytes)
        digest = hashlib.sha256(landed).hexdigest() if kind == "digest" else ""
        self._slab.release(lease.slot, lease.generation)
        return {"sha256": digest}

    def _grant(self, nbytes: int) -> dict[str, Any]:
        lease = self._lease = self._slab.reserve(nbytes)
        assert lease is not None, "the slab is as large as the largest transfer"
        return {"slot": lease.slot, "generation": lease.generation}


async def serve(slab_bytes: int, device: str) -> None:
    """Serves until standard input ends; the slab is on `device`, or on the host without one."""
    slab = Slab(slab_bytes, allocate=partial(TensorMemory, device=device) if device else HostMemory)
    # Touched, and not what any transfer carries.
    slab.memory.store(0, memoryview(b"\xff" * slab_bytes))
    landing, receiver = Landing(slab), Receiver(slab)
    chosen = open_transports(
        (nixl_wire.NAME, grpc_stream.NAME),
        required="",
        open_one=lambda name: NixlReceiver(slab.memory, landing) if name == "nixl" else None,
    )
    direct = [opened for opened in chosen.opened.values() if opened]
    server = build_server(host="127.0.0.1", port=0, service_names=[SERVICE_NAME])
    for each in direct:
        add_nixl_service(server.server, each)
    add_transfer_service(
        server.server,
        writer=landing,
        own=Peer(model=MODEL, incarnation=INCARNATION),
        direct=[each.offer for each in direct],
    )
    await server.start()
    rejected = {each.name: each.reason for each in chosen.rejected}
    _say({"address": server.address, "transports": chosen.names, "rejected": rejected})
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(await asyncio.to_thread(receiver.answer, json.loads(line)))
    finally:
        await server.stop()
        for each in direct:
            await each.close()


def _say(body: dict[str, Any]) -> None:
    print(json.dumps(body), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))  # as workers do
