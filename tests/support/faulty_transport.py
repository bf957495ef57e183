"""A member of the transport family that does to bytes what broken links do, when it is told to."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from shared.errors import TransportError
from shared.kv.memory import KvBytes
from shared.transport.base import Grant, KvSender, KvTransport, TransferStats, host_bytes
from shared.types.kv_manifest import SegmentCheck


class Fault(Enum):
    """What happens to the bytes of a sender that was made while it was set."""

    NONE = "none"
    REFUSE = "refuse"
    """The lane does not open."""
    BREAK = "break"
    """It opens, and the first write fails."""
    DROP = "drop"
    """Bytes are said to be sent and are not."""
    CORRUPT = "corrupt"
    """One bit of each write is another one, before any checksum of the transport's own."""
    STALL = "stall"
    """Writes never return."""


@dataclass
class FaultyTransport:
    """Another transport with a switch; it also counts its senders.

    Args:
        inner: moves what is left.
        name: its own name, so that one real transport can stand for several.
    """

    inner: KvTransport
    name: str
    fault: Fault = Fault.NONE
    made: int = 0
    open_senders: set[int] = field(default_factory=set)

    @property
    def check(self) -> SegmentCheck:
        return self.inner.check

    def sender(self) -> KvSender:
        self.made += 1
        return FaultySender(self, self.inner.sender(), number=self.made)

    async def close(self) -> None:
        await self.inner.close()


class FaultySender:
    def __init__(self, transport: FaultyTransport, inner: KvSender, *, number: int) -> None:
        self._transport = transport
        self._inner = inner
        self._number = number
        self._fault = transport.fault

    @property
    def takes_sums(self) -> bool:
        return self._inner.takes_sums

    async def open(self, *, address: str, grant: Grant) -> None:
        if self._fault is Fault.REFUSE:
            raise TransportError(f"{address} does not open a lane")
        await self._inner.open(address=address, grant=grant)
        self._transport.open_senders.add(self._number)

    async def write(self, offset: int, data: KvBytes) -> None:
        if self._fault is Fault.BREAK:
            raise TransportError("the lane died")
        if self._fault is Fault.DROP:
            return
        if self._fault is Fault.STALL:
            await asyncio.Event().wait()
        if self._fault is Fault.CORRUPT:
            damaged = bytearray(await host_bytes(data))
            damaged[len(damaged) // 2] ^= 1
            data = bytes(damaged)
        await self._inner.write(offset, data)

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        stats = await self._inner.seal(sums=sums)
        self._transport.open_senders.discard(self._number)
        return stats

    async def abort(self) -> None:
        await self._inner.abort()
        self._transport.open_senders.discard(self._number)
