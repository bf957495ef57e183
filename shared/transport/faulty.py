"""Faults around any transport, so that no transport breaks by itself: tests and game days.

The faults are made above the transport that moves bytes. So its own checksums do not see a damaged
chunk: what is between a wrong byte and a client is the manifest, as it is where memory goes bad.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shared.errors import TransportError
from shared.kv.memory import KvBytes
from shared.transport.base import (
    DEFAULT_CHUNK_BYTES,
    Grant,
    KvSender,
    KvTransport,
    TransferStats,
    host_bytes,
)
from shared.transport.fault_plan import Fault, FaultKind, FaultPlan, Moment
from shared.types.kv_manifest import SegmentCheck

_log = structlog.get_logger(__name__)


class FaultyTransport:
    """Breaks what another transport moves, as a plan says.

    Args:
        inner: the transport that moves bytes; peers see its name.
        plan: what goes wrong.
        on_fault: told of every fault as it happens.
        chunk_bytes: longest piece that counts as one chunk.
    """

    def __init__(
        self,
        inner: KvTransport,
        plan: FaultPlan,
        *,
        on_fault: Callable[[Fault], None] = lambda _fault: None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ) -> None:
        self.chunk_bytes = chunk_bytes
        self._inner = inner
        self._plan = plan
        self._on_fault = on_fault

    @property
    def name(self) -> str:
        """Name of the transport inside."""
        return self._inner.name

    @property
    def check(self) -> SegmentCheck:
        """Of the transport inside."""
        return self._inner.check

    def sender(self) -> KvSender:
        """A sender that breaks as the plan says for this transfer."""
        return FaultySender(self._inner.sender(), self._plan.next_transfer(), transport=self)

    async def close(self) -> None:
        """Closes the transport inside."""
        await self._inner.close()

    def note(self, fault: Fault) -> None:
        """Tells that a fault happened: nobody may take it for a real one."""
        _log.warning("a fault on purpose", fault=str(fault), transport=self.name)
        self._on_fault(fault)


class FaultySender:
    """Breaks one handoff; made by `FaultyTransport.sender`."""

    def __init__(
        self, inner: KvSender, faults: tuple[Fault, ...], *, transport: FaultyTransport
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._transport = transport
        self._sent = 0
        # Only who waits for the next chunk or the end knows whether a chunk is the last one.
        self._waits = any(fault.moment in {Moment.MIDDLE, Moment.LAST} for fault in faults)
        self._held: tuple[int, bytes] | None = None
        self._writing = asyncio.Lock()

    @property
    def takes_sums(self) -> bool:
        """Whether the sender inside does."""
        return self._inner.takes_sums

    async def open(self, *, address: str, grant: Grant) -> None:
        """Opens the sender inside; see `KvSender.open`."""
        await self._reach(Moment.HELLO)
        await self._inner.open(address=address, grant=grant)
        await self._reach(Moment.GRANT)

    async def write(self, offset: int, data: KvBytes) -> None:
        """Writes through the sender inside, a chunk late where it must; see `KvSender.write`.

        What is to be broken is broken on the host, wherever its memory is.
        """
        if not self._faults:
            await self._inner.write(offset, data)
            return
        async with self._writing:
            view = await host_bytes(data)
            for start in range(0, view.nbytes, self._transport.chunk_bytes):
                chunk = view[start : start + self._transport.chunk_bytes]
                if not self._waits:
                    await self._chunk(offset + start, chunk, last=False)
                    continue
                await self._let_go(last=False)
                self._held = (offset + start, bytes(chunk))

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Seals the sender inside; see `KvSender.seal`."""
        async with self._writing:  # a chunk that is not begun would not be counted
            await self._let_go(last=True)
        await self._reach(Moment.SEAL)
        stats = await self._inner.seal(sums=sums)
        await self._reach(Moment.ACK)
        return stats

    async def abort(self) -> None:
        """Aborts the sender inside; see `KvSender.abort`."""
        self._held = None
        await self._inner.abort()

    async def _let_go(self, *, last: bool) -> None:
        if self._held is not None:
            (offset, chunk), self._held = self._held, None
            await self._chunk(offset, chunk, last=last)

    async def _chunk(self, offset: int, chunk: memoryview | bytes, *, last: bool) -> None:
        moments = _moments(self._sent, last=last)
        self._sent += 1
        pieces = [chunk]
        for moment in moments:
            for fault in await self._reach(moment):
                pieces = _broken(fault.kind, pieces)
        for piece in pieces:
            await self._inner.write(offset, piece)

    async def _reach(self, moment: Moment) -> list[Fault]:
        """Waits or breaks off as planned; returns what is to happen to the chunk."""
        due = [fault for fault in self._faults if fault.moment is moment]
        for fault in due:
            self._transport.note(fault)
            if fault.kind is FaultKind.DELAY:
                await asyncio.sleep(fault.delay_s)
            elif fault.kind is FaultKind.KILL:
                await self.abort()
                raise TransportError(
                    f"the connection was cut on purpose ({fault}): this worker's setting faults "
                    "asks for it; empty it to end the exercise"
                )
        return due


def _moments(index: int, *, last: bool) -> list[Moment]:
    """What a chunk is; one that is alone is first and last."""
    moments = [Moment.FIRST] if index == 0 else []
    if last:
        moments.append(Moment.LAST)
    elif index == 1:
        moments.append(Moment.MIDDLE)
    return moments


def _broken(kind: FaultKind, pieces: list[memoryview | bytes]) -> list[memoryview | bytes]:
    match kind:
        case FaultKind.DROP:
            return []
        case FaultKind.DUPLICATE:
            return [*pieces, *pieces]
        case FaultKind.CORRUPT:
            return [_flipped(piece) for piece in pieces]
        case FaultKind.TRUNCATE:
            return [piece[: len(piece) // 2] for piece in pieces]
        case FaultKind.DELAY | FaultKind.KILL:
            return pieces


def _flipped(piece: memoryview | bytes) -> bytes:
    damaged = bytearray(piece)
    damaged[len(damaged) // 2] ^= 0x01
    return bytes(damaged)
