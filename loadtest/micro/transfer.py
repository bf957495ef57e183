"""Speed of every transport between two processes of this machine, arms alternating.

Nothing is measured before every byte of one transfer of each arm and size was compared. A bare copy
in memory, timed in the same repeats, is what the transports are put beside.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import uvloop

from loadtest.micro.measure import provenance
from loadtest.micro.transfer_ground import Ground, check_memory_here, open_ground
from loadtest.micro.transfer_parts import INCARNATION, MODEL, TOKEN
from loadtest.spread import paired_ratios, spread
from shared.errors import ConfigError, InternalError, TransportError
from shared.transport.base import (
    MAX_CHUNK_BYTES,
    Grant,
    KvTransport,
    TransferStats,
    TransportContext,
)
from shared.transport.nixl_sender import DIRECT_BYTES
from shared.transport.nixl_wire import NAME as NIXL
from shared.transport.registry import transport_registry
from shared.types.memory_kind import MemoryKind

MIB = 1 << 20

DEFAULT_SIZES_MIB = (8, 64, 280, 1280)
"""From a short prompt to 10,000 tokens of an 8B model, whole."""

COPY = "bare copy"
"""The arm without a transport."""

ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables without which large blocks are mapped anew each time; recorded with the figures."""

_LEASE_MS = 600_000


class _Peer:
    """The receiving process.

    Args:
        slab_bytes: the largest transfer.
        device: of its slab; empty for host memory.
    """

    def __init__(self, slab_bytes: int, *, device: str) -> None:
        module = "loadtest.micro.transfer_receiver"
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", module, str(slab_bytes), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        about = self._read()
        self.address: str = about["address"]
        self.transports: list[str] = about["transports"]
        self.rejected: dict[str, str] = about["rejected"]

    def ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401  JSON values
        """Sends a command and reads its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TransportError(
                "the receiving process of the benchmark ended: see what it wrote above"
            )
        body: dict[str, Any] = json.loads(line)
        return body


def bench_transfer(
    *,
    sizes_mib: Sequence[int],
    transports: Sequence[str],
    repeats: int,
    progress: Callable[[str], None],
    memory: str = MemoryKind.HOST.value,
) -> dict[str, Any]:
    """Measures every transport at every size.

    Args:
        sizes_mib: payload sizes.
        transports: which; empty takes all that work here.
        repeats: transfers of each arm and size.
        progress: is told what happens, one line at a time.
        memory: host, or device: from one GPU to another, by transports that join them.

    Returns:
        JSON: sizes (each with gbps, share_of_copy by arm and ratio_to_grpc), parity, rejected,
        memory (and the topology of both GPUs), the allocator variables and the provenance of the
        run. An arm is timed from its greeting until all bytes are known to be there; beside one
        that knows, NAME push is the time in which bytes were under way.

    Raises:
        ConfigError: a size or count is not positive, or a transport is unknown.
        TransportError: bytes did not arrive.
        InternalError: other bytes arrived than were sent.
    """
    check_settings(sizes_mib=sizes_mib, transports=transports, repeats=repeats)
    return uvloop.run(  # as workers do
        _bench(
            sizes_mib=sizes_mib,
            wanted=transports,
            repeats=repeats,
            memory=memory,
            progress=progress,
        )
    )


def check_settings(*, sizes_mib: Sequence[int], transports: Sequence[str], repeats: int) -> None:
    """Refuses what cannot be measured.

    Raises:
        ConfigError: a size or count is not positive, or a transport is unknown.
    """
    if min(repeats, *sizes_mib) < 1:
        raise ConfigError("sizes and repeats must be at least 1 each; raise the lower one")
    for name in transports:
        transport_registry().get(name)


async def _bench(
    *,
    sizes_mib: Sequence[int],
    wanted: Sequence[str],
    repeats: int,
    memory: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    largest = max(sizes_mib) * MIB
    async with AsyncExitStack() as stack:
        ground = open_ground(memory, nbytes=largest)
        peer = _Peer(largest, device=ground.receiver_device)
        stack.callback(peer.close)
        default = peer.transports if ground.on_host else [NIXL]
        names = [name for name in peer.transports if name in (wanted or default)]
        if not names:
            reasons = "".join(f"; {name}: {why}" for name, why in peer.rejected.items())
            raise ConfigError(
                f"none of {', '.join(wanted or default)} can be measured here: the receiving "
                f"process takes {', '.join(peer.transports)}{reasons}; give another --transports"
            )
        context = TransportContext(model=MODEL, incarnation="bench-sender", memory=ground.memory)
        arms: dict[str, KvTransport] = {}
        for name in names:
            arms[name] = transport_registry().get(name)(context)
            stack.push_async_callback(arms[name].close)
        sizes = []
        for size in sizes_mib:
            load = _Load(ground, size * MIB)
            await _check_parity(peer, arms, load, progress=progress)
            runs = await _alternate(peer, arms, load, repeats=repeats, progress=progress)
            sizes.append({"mib": size, **_figures(runs)})
        missing = {name: "not asked for" for name in peer.transports if name not in names}
        rejected = {**peer.rejected, **missing}
    flags = [f"--transports {','.join(wanted)}"] if wanted else []
    flags += [] if ground.on_host else [f"--memory {memory}"]
    command = (
        f"tandem bench transfer --sizes {','.join(map(str, sizes_mib))} --repeats {repeats}",
        *flags,
    )
    return {
        "benchmark": "transfer",
        "chunk_bytes": context.chunk_bytes if ground.on_host else DIRECT_BYTES,
        "direct_bytes": MAX_CHUNK_BYTES if ground.on_host else DIRECT_BYTES,
        "memory": ground.facts,
        "repeats": repeats,
        "sizes": sizes,
        "parity": "sha256 of every byte, each arm and size, before the first timed transfer",
        "rejected": rejected,
        "allocator": {name: os.environ.get(name, "") for name in ALLOCATOR},
        **provenance(command=" ".join(command)),
    }


async def _check_parity(
    peer: _Peer,
    arms: dict[str, KvTransport],
    load: "_Load",
    *,
    progress: Callable[[str], None],
) -> None:
    wanted = load.ground.digest(load.nbytes)
    for name, transport in arms.items():
        await _send(peer, transport, load)
        if peer.ask(do="digest")["sha256"] != wanted:
            raise InternalError(f"{load.nbytes} bytes over {name} arrived as others: report this")
        progress(f"{load.nbytes // MIB} MiB over {name}: every byte is the same")


async def _alternate(
    peer: _Peer,
    arms: dict[str, KvTransport],
    load: "_Load",
    *,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, list[float]]:
    """GB/s of each repeat by arm; each repeat begins with another arm."""
    runs: dict[str, list[float]] = {name: [] for name in (*arms, COPY)}
    order = list(runs)
    for repeat in range(repeats):
        for name in order:
            if name == COPY:
                runs[name].append(load.gbps(load.ground.copy(load.nbytes)))
                continue
            seconds, stats = await _send(peer, arms[name], load)
            peer.ask(do="release")
            runs[name].append(load.gbps(seconds))
            if stats.wire_seconds:
                runs.setdefault(f"{name} push", []).append(load.gbps(stats.wire_seconds))
        order.append(order.pop(0))
        speeds = ", ".join(f"{name} {values[-1]:.2f}" for name, values in runs.items())
        progress(f"{load.nbytes // MIB} MiB, repeat {repeat + 1} of {repeats}, GB/s: {speeds}")
    return runs


async def _send(peer: _Peer, transport: KvTransport, load: "_Load") -> tuple[float, TransferStats]:
    """Seconds from the greeting until every byte is known to be there, and what it cost."""
    granted = peer.ask(do="grant", bytes=load.nbytes)
    grant = Grant(**granted, lease_ms=_LEASE_MS, incarnation=INCARNATION, token=TOKEN)
    sender = transport.sender()
    started = time.perf_counter()
    try:
        await sender.open(address=peer.address, grant=grant)
        await sender.write(0, load.ground.payload(load.nbytes))
        stats = await sender.seal()
        return time.perf_counter() - started, stats
    finally:
        await sender.abort()


@dataclass(frozen=True, slots=True)
class _Load:
    ground: Ground
    nbytes: int

    def gbps(self, seconds: float) -> float:
        return self.nbytes / seconds / 1e9


def _figures(runs: dict[str, list[float]]) -> dict[str, Any]:
    names = [name for name in runs if name != COPY]
    base = runs.get("grpc")
    return {
        "gbps": {name: spread(values) for name, values in runs.items()},
        "share_of_copy": {name: paired_ratios(runs[name], runs[COPY]) for name in names},
        "ratio_to_grpc": {
            name: paired_ratios(runs[name], base) for name in names if base and name != "grpc"
        },
    }


def main(arguments: Sequence[str]) -> None:
    """Prints the benchmark's JSON; a process of its own, for the allocator variables."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.micro.transfer")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(DEFAULT_SIZES_MIB))
    parser.add_argument("--transports", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", default=MemoryKind.HOST.value)
    flags = parser.parse_args(arguments)
    check_memory_here(flags.memory)

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    result = bench_transfer(
        sizes_mib=flags.sizes,
        transports=flags.transports,
        repeats=flags.repeats,
        memory=flags.memory,
        progress=tell,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
