"""Speed of every transport between two processes of this machine, arms alternating.

Nothing is measured before every byte of one transfer of each arm and size was compared. A bare copy
in memory, timed in the same repeats, is what the transports are put beside.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop

from loadtest.micro.measure import provenance
from loadtest.micro.transfer_parts import INCARNATION, MODEL, TOKEN
from loadtest.spread import paired_ratios, spread
from shared.errors import ConfigError, InternalError, TransportError
from shared.transport.base import Grant, KvTransport, TransportContext
from shared.transport.registry import transport_registry

MIB = 1 << 20

DEFAULT_SIZES_MIB = (8, 64, 280, 1280)
"""From a short prompt to 10,000 tokens of an 8B model, whole."""

COPY = "bare copy"
"""The arm without a transport."""

ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables without which large blocks are mapped anew each time; recorded with the figures."""

_LEASE_MS = 600_000

Bytes = npt.NDArray[np.uint8]


class _Peer:
    """The receiving process.

    Args:
        slab_bytes: the largest transfer.
    """

    def __init__(self, slab_bytes: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", "loadtest.micro.transfer_receiver", str(slab_bytes)],
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
) -> dict[str, Any]:
    """Measures every transport at every size.

    Args:
        sizes_mib: payload sizes.
        transports: which; empty takes all that work here.
        repeats: transfers of each arm and size.
        progress: is told what happens, one line at a time.

    Returns:
        JSON: sizes (each with gbps, share_of_copy by arm and ratio_to_grpc), parity, rejected, the
        allocator variables and the provenance of the run.

    Raises:
        ConfigError: a size or count is not positive, or a transport is unknown.
        TransportError: bytes did not arrive.
        InternalError: other bytes arrived than were sent.
    """
    check_settings(sizes_mib=sizes_mib, transports=transports, repeats=repeats)
    return uvloop.run(  # as workers do
        _bench(sizes_mib=sizes_mib, wanted=transports, repeats=repeats, progress=progress)
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
    progress: Callable[[str], None],
) -> dict[str, Any]:
    largest = max(sizes_mib) * MIB
    async with AsyncExitStack() as stack:
        peer = _Peer(largest)
        stack.callback(peer.close)
        names = [name for name in peer.transports if not wanted or name in wanted]
        context = TransportContext(model=MODEL, incarnation="bench-sender")
        arms: dict[str, KvTransport] = {}
        for name in names:
            arms[name] = transport_registry().get(name)(context)
            stack.push_async_callback(arms[name].close)
        source = np.random.default_rng(0).integers(0, 256, largest, dtype=np.uint8)
        target = np.zeros_like(source)
        sizes = []
        for size in sizes_mib:
            payload = source[: size * MIB]
            await _check_parity(peer, arms, payload, progress=progress)
            runs = await _alternate(
                peer, arms, payload, target=target, repeats=repeats, progress=progress
            )
            sizes.append({"mib": size, **_figures(runs)})
        missing = {name: "not asked for" for name in peer.transports if name not in names}
        rejected = {**peer.rejected, **missing}
    flags = [f"--transports {','.join(wanted)}"] if wanted else []
    command = (
        f"tandem bench transfer --sizes {','.join(map(str, sizes_mib))} --repeats {repeats}",
        *flags,
    )
    return {
        "benchmark": "transfer",
        "chunk_bytes": context.chunk_bytes,
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
    payload: Bytes,
    *,
    progress: Callable[[str], None],
) -> None:
    wanted = hashlib.sha256(payload.data).hexdigest()
    for name, transport in arms.items():
        await _send(peer, transport, payload)
        if peer.ask(do="digest")["sha256"] != wanted:
            raise InternalError(
                f"{payload.nbytes} bytes over {name} arrived as others: report this"
            )
        progress(f"{payload.nbytes // MIB} MiB over {name}: every byte is the same")


async def _alternate(
    peer: _Peer,
    arms: dict[str, KvTransport],
    payload: Bytes,
    *,
    target: Bytes,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, list[float]]:
    """GB/s of each repeat by arm; each repeat begins with another arm."""
    runs: dict[str, list[float]] = {name: [] for name in (*arms, COPY)}
    order = list(runs)
    for repeat in range(repeats):
        for name in order:
            if name == COPY:
                seconds = _copy(payload, target)
            else:
                seconds = await _send(peer, arms[name], payload)
                peer.ask(do="release")
            runs[name].append(payload.nbytes / seconds / 1e9)
        order.append(order.pop(0))
        speeds = ", ".join(f"{name} {values[-1]:.2f}" for name, values in runs.items())
        progress(f"{payload.nbytes // MIB} MiB, repeat {repeat + 1} of {repeats}, GB/s: {speeds}")
    return runs


async def _send(peer: _Peer, transport: KvTransport, payload: Bytes) -> float:
    """Seconds from the greeting until every byte is known to be there."""
    granted = peer.ask(do="grant", bytes=payload.nbytes)
    grant = Grant(**granted, lease_ms=_LEASE_MS, incarnation=INCARNATION, token=TOKEN)
    sender = transport.sender()
    started = time.perf_counter()
    try:
        await sender.open(address=peer.address, grant=grant)
        await sender.write(0, payload.data)
        await sender.seal()
        return time.perf_counter() - started
    finally:
        await sender.abort()


def _copy(payload: Bytes, target: Bytes) -> float:
    started = time.perf_counter()
    np.copyto(target[: payload.nbytes], payload)
    return time.perf_counter() - started


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
    flags = parser.parse_args(arguments)

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    result = bench_transfer(
        sizes_mib=flags.sizes, transports=flags.transports, repeats=flags.repeats, progress=tell
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
