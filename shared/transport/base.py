"""The interface of every transport: a sender on the prefill side, a slab writer on the decode side.

A sender lives for one handoff: `open`, any number of `write`, then `seal` or `abort`. Between the
calls it keeps the slab's lease alive by itself. Bytes may be reused as soon as `write` returns.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from shared.errors import ConfigError, TransportError
from shared.kv.memory import KvBytes, KvMemory, MemoryPart
from shared.kv.memory_reads import MemoryReads
from shared.rpc.tls import PeerTls
from shared.types.kv_manifest import SegmentCheck
from shared.types.memory_kind import MemoryKind
from shared.types.model_identity import ModelIdentity

DEFAULT_CHUNK_BYTES = 2 * 2**20
"""Payload bytes of one frame."""

MIN_CHUNK_BYTES = 2**20
"""Smallest setting that is allowed."""

MAX_CHUNK_BYTES = 4 * 2**20
"""Largest setting that is allowed, and the largest payload a receiver accepts."""

DEFAULT_CREDITS = 8
"""Frames that may be unacknowledged on one stream."""

HOST_PIECE_BYTES = 64 * 2**20
"""Most bytes of a memory that lie on the host at once, copied to be sent from there."""

HEARTBEATS_PER_LEASE = 6
"""A silent sender speaks this often in the time of one lease."""

SHORTEST_HEARTBEAT_SECONDS = 0.02
"""It speaks no more often than this, however short the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A landing slab as the decode side granted it."""

    slot: int
    """Slot of the slab."""
    generation: int
    """Generation of the slot; writes with another one are refused."""
    lease_ms: int = 30_000
    """Remaining lease, in milliseconds, renewed by every frame."""
    transports: tuple[str, ...] = ()
    """Transports the worker accepts, best first."""
    incarnation: str = ""
    """Incarnation of the worker; empty skips the comparison."""
    token: bytes = field(default=b"", repr=False)
    """Proves the right to this slab; shown to nobody but the worker that gave it."""

    @property
    def heartbeat_seconds(self) -> float:
        """Longest time a sender may be silent, in seconds."""
        return max(self.lease_ms / 1000 / HEARTBEATS_PER_LEASE, SHORTEST_HEARTBEAT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """What one sealed transfer cost."""

    bytes: int
    """Payload bytes that arrived."""
    seconds: float
    """Time spent in `write` and `seal`; idle time between writes is not counted."""
    wire_seconds: float = 0.0
    """Time in which bytes were under way, where the transport knows it; else 0."""

    @property
    def gbps(self) -> float:
        """Gigabytes per second of that time; 0 when nothing moved."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


class SenderState(Enum):
    """Life of a sender; SEALED and CLOSED are final."""

    NEW = "new"
    OPEN = "open"
    SEALED = "sealed"
    CLOSED = "closed"

    def refusal(self) -> TransportError:
        """Why nothing can be sent in this state, which is not OPEN."""
        return TransportError(
            f"this transfer is {self.value}: it was closed while bytes were still to be sent; "
            "start a new attempt"
        )


class KvSender(Protocol):
    """Moves one handoff's bytes into one granted slab."""

    @property
    def takes_sums(self) -> bool:
        """Whether its seal may bring sums, and begin while the last write is under way.

        Known once it is open; both ends have to be able to.
        """

    async def open(self, *, address: str, grant: Grant) -> None:
        """Connects to a decode worker and checks that both sides speak of the same cache.

        Raises:
            TransportError: unreachable, restarted since the grant, or another model or protocol.
        """

    async def write(self, offset: int, data: KvBytes) -> None:
        """Sends `data` to `offset` of the slab; waits while the receiver is behind.

        A part of a memory is read where it is by a transport that the memory is registered with;
        others read a copy of it.

        Raises:
            StaleWriteError: the receiver refused a write; the slab is no longer ours.
            TransportError: the bytes cannot arrive.
        """

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Ends the transfer; returns when every byte is in the slab.

        Args:
            sums: of the segments, where a commit said that they follow; only if `takes_sums`.

        Raises:
            StaleWriteError: the receiver refused a write.
            TransportError: the bytes cannot arrive.
        """

    async def abort(self) -> None:
        """Gives the transfer up and waits until nothing of it runs here; twice is fine."""


async def host_bytes(data: KvBytes) -> memoryview:
    """The bytes on the host, for transports that send them from there."""
    if isinstance(data, MemoryPart):
        if data.memory.kind is MemoryKind.HOST:
            return data.on_host()  # itself, not a copy
        return await asyncio.to_thread(data.on_host)
    return memoryview(data).cast("B")


async def host_pieces(data: KvBytes) -> AsyncIterator[memoryview]:
    """The same in order, of a part never more than `HOST_PIECE_BYTES` at once.

    A copy lies in pinned memory, which torch keeps for the next one and never gives back.
    """
    if not isinstance(data, MemoryPart):
        yield memoryview(data).cast("B")
        return
    for start in range(0, data.nbytes, HOST_PIECE_BYTES):
        yield await host_bytes(data.part(start, min(HOST_PIECE_BYTES, data.nbytes - start)))


class KvTransport(Protocol):
    """A way of moving bytes; keeps connections and makes senders."""

    @property
    def name(self) -> str:
        """Name in grants, cards and metrics."""

    @property
    def check(self) -> SegmentCheck:
        """Sums by which its receivers verify segments."""

    def sender(self) -> KvSender:
        """A sender for one handoff."""

    async def close(self) -> None:
        """Drops all connections; twice is fine."""


class SlabWriter(Protocol):
    """What a receiver does with the frames of a stream; the decode service implements it."""

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """Decides whether a stream that shows `token` may name this slot; asked once a stream.

        Raises:
            StaleWriteError: the slot is not granted (any more), or to somebody else.
        """

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        """Copies one chunk and renews the lease.

        Raises:
            StaleWriteError: slot, generation, range or state does not match.
        """

    def heartbeat(self, slot: int, generation: int) -> None:
        """Renews the lease.

        Raises:
            StaleWriteError: the lease is over.
        """

    def writer_closed(self, slot: int, generation: int, *, clean: bool) -> None:
        """A stream that named this slot is over; clean when it ended with an end frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabWindow:
    """Where a lease lies in the slab."""

    offset: int
    """Its first byte."""
    nbytes: int
    """Its bytes."""


class DirectLanding(Protocol):
    """What a receiver asks about bytes that a peer writes into the slab itself.

    Such a peer cannot be stopped in the middle of a write. So a lease's bytes may not serve anybody
    else before `writer_closed` said that the peer is still, or a time has passed in which it must
    have died.
    """

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """See `SlabWriter.authorize`."""

    def window(self, slot: int, generation: int) -> SlabWindow:
        """Opens a lease to writes and says where it lies.

        Raises:
            StaleWriteError: the lease is over.
        """

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """Renews the lease of a chunk that was written, and shows the chunk.

        Raises:
            StaleWriteError: the lease is over, or the chunk leaves it.
        """

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        """Renews the lease of a chunk that holds what its sender meant, as far as is known yet.

        Its range is within the lease; a manifest may have sums of it.

        Raises:
            StaleWriteError: the lease is over.
        """

    def heartbeat(self, slot: int, generation: int) -> None:
        """See `SlabWriter.heartbeat`."""

    def writer_closed(
        self, slot: int, generation: int, *, clean: bool, drained: bool, sums: Sequence[int] = ()
    ) -> None:
        """A peer stopped: cleanly or not, and known to be still (drained) or not.

        Args:
            slot: of the lease.
            generation: of the lease.
            clean: whether all that was promised landed.
            drained: whether no write can come any more.
            sums: of the segments, which a commit may wait for; only with a clean end.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """A receiver in this process."""

    writer: SlabWriter
    """Where bytes go."""
    model: ModelIdentity
    """Whose cache it takes."""
    incarnation: str
    """Its incarnation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportContext:
    """What a transport needs to know of its own side.

    Raises:
        ConfigError: chunk_bytes is outside 1 to 4 MiB.
    """

    model: ModelIdentity
    """Whose cache is sent."""
    incarnation: str
    """This process's incarnation."""
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    """Payload bytes of one frame, 1 to 4 MiB."""
    local_endpoints: Mapping[str, LocalEndpoint] = field(default_factory=dict)
    """Receivers of this process by address; only the loopback transport looks here."""
    tls: PeerTls | None = None
    """Mutual TLS with the receivers, for transports over gRPC; plain text without."""
    memory: KvMemory | None = None
    """Memory that KV is sent from, which transports register; None: what lies anywhere on the host,
    of which they send copies."""
    reads: MemoryReads = field(default_factory=MemoryReads)
    """Told which parts of `memory` transfers may still read."""

    def __post_init__(self) -> None:
        if not MIN_CHUNK_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise ConfigError(
                f"chunk_bytes {self.chunk_bytes} is outside {MIN_CHUNK_BYTES} to "
                f"{MAX_CHUNK_BYTES}: small chunks cost calls, large ones memory; use 2 MiB"
            )
