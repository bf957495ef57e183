"""One end of a transfer in a process of its own, to be killed.

`python transfer_process.py receive NAME BYTES` grants one lease, prints `address slot generation`
and waits. `python transfer_process.py send NAME ADDRESS BYTES GRANT` writes the lease full, over
and over, and prints a line after each round.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared.transport.base import Grant, TransportContext
from shared.types.model_identity import ModelIdentity
from tests.support.transfer_parts import open_transport, receiver

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def transfer_process(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """One end in a process of its own; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.transfer_process", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


async def receive(name: str, nbytes: int) -> None:
    async with receiver(name, slab_bytes=2 * nbytes) as end:
        lease, _ = end.grant(nbytes)
        print(end.address, lease.slot, lease.generation, flush=True)
        await asyncio.Event().wait()


async def send(name: str, address: str, nbytes: int, about: dict[str, Any]) -> None:
    context = TransportContext(model=ModelIdentity(**about["model"]), incarnation="child")
    sender = open_transport(name, context).sender()
    grant = Grant(
        slot=about["slot"],
        generation=about["generation"],
        incarnation=about["incarnation"],
        token=bytes.fromhex(about["token"]),
    )
    await sender.open(address=address, grant=grant)
    payload = bytes([7]) * nbytes
    while True:
        await sender.write(0, payload)
        print("written", flush=True)


def sending(
    name: str, address: str, nbytes: int, *, grant: Grant, model: ModelIdentity
) -> tuple[str, ...]:
    """Arguments of a process that fills a granted lease over and over."""
    about = {
        "slot": grant.slot,
        "generation": grant.generation,
        "incarnation": grant.incarnation,
        "token": grant.token.hex(),
        "model": asdict(model),
    }
    return ("send", name, address, str(nbytes), json.dumps(about))


def main(arguments: list[str]) -> None:
    what, name, *rest = arguments
    if what == "receive":
        asyncio.run(receive(name, int(rest[0])))
    else:
        address, nbytes, about = rest
        asyncio.run(send(name, address, int(nbytes), json.loads(about)))


if __name__ == "__main__":
    main(sys.argv[1:])
