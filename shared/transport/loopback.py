"""The in-process transport: writes straight into a receiver of this process.

For a decode worker that reads prompts itself, and for tests.
"""

import asyncio
import time
from collections.abc import Sequence

from shared.errors import HandoffError, TransportError
from shared.kv.memory import KvBytes
from shared.transport.base import (
    Grant,
    LocalEndpoint,
    SenderState,
    TransferStats,
    TransportContext,
    host_pieces,
)
from shared.transport.hello import Peer, check_peer
from shared.types.kv_manifest import SegmentCheck

NAME = "loopback"
"""Name in grants, cards and metrics."""


class LoopbackTransport:
    """Senders to the local endpoints of a context.

    Args:
        context: this side and the receivers of this process.
    """

    name = NAME
    check = SegmentCheck.CRC32

    def __init__(self, context: TransportContext) -> None:
        self.context = context

    def sender(self) -> "LoopbackSender":
        """A sender for one handoff."""
        return LoopbackSender(self.context)

    async def close(self) -> None:
        """Nothing is kept open."""


class LoopbackSender:
    """Sends one handoff's bytes; made by `LoopbackTransport.sender`."""

    takes_sums = False
    """See `KvSender.takes_sums`."""

    def __init__(self, context: TransportContext) -> None:
        self._context = context
        self._state = SenderState.NEW
        self._endpoint: LocalEndpoint | None = None
        self._grant = Grant(slot=0, generation=0)
        self._authorized = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._sent_bytes = 0
        self._busy_seconds = 0.0

    async def open(self, *, address: str, grant: Grant) -> None:
        """Finds the receiver and compares both sides; see `KvSender.open`."""
        assert self._state is SenderState.NEW, "a sender is for one handoff"
        endpoint = self._context.local_endpoints.get(address)
        if endpoint is None:
            raise TransportError(
                f"no receiver of this process answers to {address!r}: the loopback transport "
                "reaches only its own process; choose grpc"
            )
        check_peer(
            Peer(model=self._context.model, incarnation=self._context.incarnation),
            Peer(model=endpoint.model, incarnation=endpoint.incarnation),
            expected_incarnation=grant.incarnation,
        )
        self._endpoint, self._grant, self._state = endpoint, grant, SenderState.OPEN
        self._heartbeat = asyncio.create_task(self._keep_alive())

    async def write(self, offset: int, data: KvBytes) -> None:
        """Copies bytes chunk by chunk; see `KvSender.write`."""
        started = time.perf_counter()
        async for piece in host_pieces(data):
            for start in range(0, piece.nbytes, self._context.chunk_bytes):
                chunk = piece[start : start + self._context.chunk_bytes]
                self._receiver().writer.write(
                    slot=self._grant.slot,
                    generation=self._grant.generation,
                    offset=offset + start,
                    data=chunk,
                )
                self._sent_bytes += chunk.nbytes
                await asyncio.sleep(0)
            offset += piece.nbytes
        self._busy_seconds += time.perf_counter() - started

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Verifies that the lease still stands; see `KvSender.seal`."""
        assert not sums, "only where they are taken"
        writer = self._receiver().writer
        writer.heartbeat(self._grant.slot, self._grant.generation)
        self._state = SenderState.SEALED
        await self._stop(clean=True)
        return TransferStats(bytes=self._sent_bytes, seconds=self._busy_seconds)

    async def abort(self) -> None:
        """Ends the transfer; a sealed one stays sealed."""
        if self._state is SenderState.OPEN:
            self._state = SenderState.CLOSED
            await self._stop(clean=False)

    def _receiver(self) -> LocalEndpoint:
        if self._endpoint is None or self._state is not SenderState.OPEN:
            raise self._state.refusal()
        if not self._authorized:
            grant = self._grant
            self._endpoint.writer.authorize(grant.slot, grant.generation, token=grant.token)
            self._authorized = True
        return self._endpoint

    async def _stop(self, *, clean: bool) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        if self._endpoint is not None and self._authorized:
            writer = self._endpoint.writer
            writer.writer_closed(self._grant.slot, self._grant.generation, clean=clean)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._grant.heartbeat_seconds)
            try:
                self._receiver().writer.heartbeat(self._grant.slot, self._grant.generation)
            except HandoffError:
                return  # the next write raises the same refusal
