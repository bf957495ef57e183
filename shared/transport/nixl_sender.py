"""The sender of the NIXL transport: one handoff, one lane."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.errors import HandoffError, StaleWriteError, TandemError, TransportError
from shared.kv.memory import KvBytes, MemoryPart
from shared.transport.base import (
    MAX_CHUNK_BYTES,
    Grant,
    SenderState,
    TransferStats,
    host_bytes,
)
from shared.transport.greeting import answers_of
from shared.transport.nixl_agent import NixlAgent
from shared.transport.nixl_chunks import DirectWrite
from shared.transport.nixl_wire import Notice, NoticeCheck, encode_notice
from shared.types.kv_manifest import SegmentCheck

LaneCall = grpc.aio.StreamStreamCall[transfer_pb2.LaneRequest, transfer_pb2.LaneResponse]
"""A lane as this side sees it."""

BATCH_CHUNKS = 16
"""Chunks that one turn of the agent's thread writes, so that handoffs take turns."""

DIRECT_BYTES = 256 << 20
"""Bytes of one write from device memory: what is shorter does not reach the speed of NVLink. From
host memory one is as long as a receiver may sum at once: `MAX_CHUNK_BYTES`."""

_GOODBYE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class OpenLane:
    """A lane that the receiver opened."""

    call: LaneCall
    """The stream."""
    peer: str
    """Name of the receiver's agent."""
    terms: transfer_pb2.LaneOpened
    """Where the lease lies, and how much may be written ahead."""


class LaneOpener(Protocol):
    """What a sender needs of its transport."""

    async def open_lane(self, address: str, grant: Grant) -> OpenLane:
        """Opens a lane to a decode worker."""

    async def lost(self, address: str) -> None:
        """Forgets a worker that a write failed to."""


class NixlSender:
    """Writes one handoff's bytes; made by `NixlTransport.sender`.

    Args:
        opener: its transport.
        agent: writes.
        chunk_bytes: bytes of one write.
    """

    def __init__(self, opener: LaneOpener, *, agent: NixlAgent, chunk_bytes: int) -> None:
        self._opener = opener
        self._agent = agent
        self._chunk_bytes = chunk_bytes
        self._state = SenderState.NEW
        self._address = ""
        self._grant = Grant(slot=0, generation=0)
        self._lane: OpenLane | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()
        self._speaking = asyncio.Lock()
        self._counting = asyncio.Lock()
        self._batch: asyncio.Future[float] | None = None
        self._writing_since: float | None = None
        self._failure: TandemError | None = None
        self._lease_until = 0.0
        self._beats: dict[int, float] = {}
        self._due_chunks = 0
        self._due_bytes = 0
        self._sent_chunks = 0
        self._landed_chunks = 0
        self._done: transfer_pb2.LaneDone | None = None
        self._ended = False
        self._ended_ahead = False
        self._leaving: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._busy_seconds = 0.0
        self._wire_seconds = 0.0

    @property
    def takes_sums(self) -> bool:
        """See `KvSender.takes_sums`: from a device's memory, to who waits for the last notices."""
        on_device = self._agent.check is SegmentCheck.SUM64
        return on_device and self._lane is not None and self._lane.terms.takes_sums

    async def open(self, *, address: str, grant: Grant) -> None:
        """Opens the lane; see `KvSender.open`."""
        assert self._state is SenderState.NEW, "a sender is for one handoff"
        self._address, self._grant = address, grant
        asked = time.monotonic()
        lane = self._lane = await self._opener.open_lane(address, grant)
        self._lease_until = asked + grant.lease_ms / 1000
        self._state = SenderState.OPEN
        self._tasks = [
            asyncio.create_task(self._read_answers(lane.call)),
            asyncio.create_task(self._keep_alive()),
        ]

    async def write(self, offset: int, data: KvBytes) -> None:
        """Writes bytes chunk by chunk; see `KvSender.write`."""
        self._writing_since = time.perf_counter()
        async with self._counting:
            chunks = await self._chunks(data)
            nbytes = sum(chunk.nbytes for chunk in chunks)
            lane = self._open_lane()
            if offset < 0 or offset + nbytes > lane.terms.length:
                raise StaleWriteError(
                    f"bytes {offset}..{offset + nbytes} leave the lease of {lane.terms.length} "
                    f"bytes in slab slot {self._grant.slot}: this side planned another layout; "
                    "start a new attempt"
                )
            self._due_chunks += len(chunks)
            self._due_bytes += nbytes
        while chunks:
            count = await self._allowed_chunks(lane, min(len(chunks), BATCH_CHUNKS))
            await self._write_batch(lane, offset, chunks[:count])
            offset += sum(chunk.nbytes for chunk in chunks[:count])
            chunks = chunks[count:]
        self._count_busy()

    async def _chunks(self, data: KvBytes) -> Sequence[memoryview | MemoryPart]:
        """Pieces of one write each."""
        if isinstance(data, MemoryPart) and self._agent.reads(data):
            on_host = self._agent.check is SegmentCheck.CRC32
            most = MAX_CHUNK_BYTES if on_host else DIRECT_BYTES
            starts = range(0, data.nbytes, most)
            return [data.part(at, min(most, data.nbytes - at)) for at in starts]
        view = await host_bytes(data)
        starts = range(0, view.nbytes, self._chunk_bytes)
        return [view[start : start + self._chunk_bytes] for start in starts]

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Tells how much is written and waits until all of it landed; see `KvSender.seal`."""
        self._count_busy()  # of a last write; it goes on beside the seal
        started = time.perf_counter()
        self._open_lane()
        async with self._counting:  # what was begun is counted, if not yet written
            due = {"chunks": self._due_chunks, "bytes": self._due_bytes}
        end = transfer_pb2.LaneEnd(**due, sums=sums)
        self._ended, self._ended_ahead = True, bool(sums)
        await self._say(transfer_pb2.LaneRequest(end=end))
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._done is not None or self._failure is not None
            )
        if self._done is None or self._done.bytes != self._due_bytes:
            raise self._failure or TransportError(
                f"{self._address} counted other bytes than the {self._due_bytes} that were "
                "written: chunks were lost; start a new attempt"
            )
        self._state = SenderState.SEALED
        # The stream's own end is still to come, and nothing depends on it.
        self._stopping = asyncio.create_task(self._stop())
        self._busy_seconds += time.perf_counter() - started
        return TransferStats(
            bytes=self._due_bytes,
            seconds=self._busy_seconds,
            wire_seconds=self._wire_seconds,
        )

    async def abort(self) -> None:
        """Stops writing, says so when nothing is under way, and ends; a sealed one stays sealed."""
        if self._stopping is not None:
            await self._stopping
            return
        self._state = SenderState.CLOSED
        await self._fail(TransportError("the transfer was given up here; start a new attempt"))
        if self._lane is not None:
            await asyncio.shield(self._leave(self._lane))
            await self._stop()

    # --- writing ------------------------------------------------------------------------------

    def _open_lane(self) -> OpenLane:
        if self._failure is not None:
            raise self._failure
        if self._state is not SenderState.OPEN or self._lane is None:
            raise self._state.refusal()
        return self._lane

    async def _allowed_chunks(self, lane: OpenLane, wanted: int) -> int:
        """How many chunks may be written now; waits for the first."""

        def allowed() -> int:
            return int(lane.terms.credits) - (self._sent_chunks - self._landed_chunks)

        async with self._changed:
            await self._changed.wait_for(lambda: allowed() > 0 or self._failure is not None)
            self._open_lane()
            return min(allowed(), wanted)

    async def _write_batch(
        self, lane: OpenLane, offset: int, chunks: Sequence[memoryview | MemoryPart]
    ) -> None:
        writes = []
        for data in chunks:
            notice = partial(self._notice, lane=lane, offset=offset, length=data.nbytes)
            writes.append(
                DirectWrite(
                    address=lane.terms.address + offset,
                    device=lane.terms.device,
                    data=data,
                    notice=notice,
                )
            )
            offset += data.nbytes
        self._sent_chunks += len(writes)
        writing = self._agent.write(lane.peer, writes, may_go=self._check_lease)
        # Cancelling the caller does not stop a write; whoever ends the handoff waits for it.
        self._batch = asyncio.ensure_future(writing)
        try:
            self._wire_seconds += await asyncio.shield(self._batch)
        except HandoffError as error:
            if self._failure is None and isinstance(error, TransportError):
                await self._opener.lost(self._address)
            await self._fail(error)
            assert self._failure is not None, "set just now, or before"
            raise self._failure from error

    def _notice(self, checksum: int | None, *, lane: OpenLane, offset: int, length: int) -> bytes:
        return encode_notice(
            Notice(
                key=lane.terms.key,
                slot=self._grant.slot,
                generation=self._grant.generation,
                offset=offset,
                length=length,
                crc32=checksum or 0,
                check=NoticeCheck.MANIFEST if checksum is None else NoticeCheck.CRC32,
            )
        )

    def _count_busy(self) -> None:
        """A write has ended, or is counted with the seal from now on."""
        if self._writing_since is not None:
            self._busy_seconds += time.perf_counter() - self._writing_since
            self._writing_since = None

    def _check_lease(self) -> None:
        """Called on the agent's thread right before each chunk goes."""
        failure = self._failure
        if failure is not None:
            raise failure
        if time.monotonic() >= self._lease_until:
            raise StaleWriteError(
                f"the lease of slab slot {self._grant.slot} was not renewed in time: the worker "
                "hangs or the way to it does; start a new attempt"
            )

    # --- speaking -----------------------------------------------------------------------------

    async def _say(self, message: transfer_pb2.LaneRequest) -> None:
        assert self._lane is not None, "only an open lane is spoken on"
        call = self._lane.call
        try:
            async with self._speaking:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            await call.code()
            async with self._changed:
                await self._changed.wait_for(lambda: self._failure is not None)
            assert self._failure is not None, "waited for"
            raise self._failure from error

    def _leave(self, lane: OpenLane) -> asyncio.Task[None]:
        """Says goodbye once, whoever wants it first."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._say_goodbye(lane))
        return self._leaving

    async def _say_goodbye(self, lane: OpenLane) -> None:
        """Tells the receiver that its slot can go back, as soon as that is true."""
        if self._batch is not None:
            await asyncio.gather(self._batch, return_exceptions=True)
        through = self._ended and not self._ended_ahead
        if not self._agent.is_settled(lane.peer):
            await self._opener.lost(self._address)  # whoever waited for the write may have left
            return
        if through:
            return
        self._ended, self._ended_ahead = True, False
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                drained = transfer_pb2.LaneDrained()
                await self._say(transfer_pb2.LaneRequest(drained=drained))
                await lane.call.code()
        except (TimeoutError, HandoffError):
            return  # the receiver keeps its slot for as long as this side could live

    async def _read_answers(self, call: LaneCall) -> None:
        async with answers_of(self._address, fail=self._fail):
            while isinstance(answer := await call.read(), transfer_pb2.LaneResponse):
                await self._hear(answer)

    async def _hear(self, answer: transfer_pb2.LaneResponse) -> None:
        kind = answer.WhichOneof("event")
        if kind == "refused":
            await self._fail(StaleWriteError(answer.refused.message))
            assert self._lane is not None, "it was refused"
            self._leave(self._lane)  # the slot is wanted back now, not when more bytes are ready
        async with self._changed:
            if kind == "done":
                self._done = answer.done
            elif kind == "progress":
                self._landed_chunks = answer.progress.chunks
                self._renewed(answer.progress.heartbeat)
            self._changed.notify_all()

    def _renewed(self, sequence: int) -> None:
        """The lease counts from when the renewal that was heard was sent."""
        said = self._beats.get(sequence)
        if said is not None:
            self._lease_until = said + self._grant.lease_ms / 1000
            self._beats = {n: at for n, at in self._beats.items() if n > sequence}

    async def _keep_alive(self) -> None:
        """Renews the lease on both sides, whether bytes are sent or not."""
        sequence = 0
        while True:
            await asyncio.sleep(self._grant.heartbeat_seconds)  # opening the lane was the first one
            if self._failure is not None or self._ended:
                return
            sequence += 1
            self._beats[sequence] = time.monotonic()
            beat = transfer_pb2.LaneHeartbeat(sequence=sequence)
            try:
                await self._say(transfer_pb2.LaneRequest(heartbeat=beat))
            except HandoffError:
                return  # the reading task holds the reason, the next write raises it

    async def _fail(self, failure: TandemError) -> None:
        async with self._changed:
            if self._failure is None and self._state is not SenderState.SEALED:
                self._failure = failure
            self._changed.notify_all()

    async def _stop(self) -> None:
        assert self._lane is not None, "it was opened"
        tasks, self._tasks = self._tasks, []
        if self._leaving is not None:
            tasks.append(self._leaving)
        if self._state is not SenderState.SEALED:
            self._lane.call.cancel()
        for task in tasks[1:] if self._state is SenderState.SEALED else tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
