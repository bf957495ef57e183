"""One lane of the NIXL transport as the receiver sees it: what landed, and how it ended."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import grpc.aio
import structlog

from protos.tandem.v1 import transfer_pb2
from shared.errors import InternalError, StaleWriteError, TandemError, TransportError
from shared.kv.checksum import crc32
from shared.kv.memory import KvMemory
from shared.transport.base import DirectLanding, SlabWindow
from shared.transport.nixl_wire import KEY_BYTES, Notice, NoticeCheck
from shared.types.memory_kind import MemoryKind
from shared.wire.errors import error_to_pb

SETTLE_SECONDS = 5.0
"""Longest wait for the notices of a transfer whose sender says that it wrote everything."""

MOST_SUMS = 1 << 16
"""Sums that one end may bring: far more segments than a cache has, and little memory."""

_log = structlog.get_logger(__name__)

LaneContext = grpc.aio.ServicerContext[transfer_pb2.LaneRequest, transfer_pb2.LaneResponse]
"""A lane's call."""


class Lane:
    """Counts one handoff's chunks; one task serves it, and notices come from another.

    Args:
        opening: the lease.
        window: where it lies.
        landing: decides what may land.
        context: the call.
    """

    def __init__(
        self,
        opening: transfer_pb2.LaneOpen,
        *,
        window: SlabWindow,
        landing: DirectLanding,
        context: LaneContext,
    ) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self.clean = False
        self.drained = False
        self.sums: tuple[int, ...] = ()
        self._closed = False
        self._slot, self._generation = opening.slot, opening.generation
        self._window = window
        self._landing = landing
        self._context = context
        self._news = asyncio.Event()
        self._arrived = asyncio.Event()
        self._direct = False
        self._hurry: Callable[[], None] = lambda: None
        self._tell_every = 1
        self._chunks = 0
        self._told_chunks = 0
        self._bytes = 0
        self._heartbeat = 0
        self._refusal: TandemError | None = None

    async def serve(
        self, *, memory: KvMemory, credit_window: int, hurry: Callable[[], None]
    ) -> None:
        """Opens the lane and listens until its sender is through; `clean` and `drained` say how.

        Args:
            memory: where the slab is.
            credit_window: chunks that may be written and not yet counted.
            hurry: makes whoever waits for notices look at once.

        Raises:
            TandemError: the lane was refused, or not all that was written landed.
            TransportError: the sender went away without a word.
        """
        self._direct = memory.kind is MemoryKind.DEVICE
        self._hurry = hurry
        # Half a window at a time: as good as one by one for the sender, and fewer calls.
        self._tell_every = max(1, credit_window // 2)
        opened = transfer_pb2.LaneOpened(
            address=memory.address + self._window.offset,
            device=memory.device_index,
            length=self._window.nbytes,
            key=self.key,
            credits=credit_window,
            takes_sums=self._direct,
        )
        await self._context.write(transfer_pb2.LaneResponse(opened=opened))
        answering = asyncio.create_task(self._answer())
        try:
            await self._listen()
        finally:
            self.close()
            if self.clean:
                # Cancelled in the middle of a write, it would spoil the farewell.
                self._news.set()
            else:
                answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    def close(self) -> None:
        """Says that nothing is written any more, or that it may be; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self._landing.writer_closed(
            self._slot, self._generation, clean=self.clean, drained=self.drained, sums=self.sums
        )

    async def say_done(self) -> None:
        """Tells the sender that everything landed."""
        done = transfer_pb2.LaneDone(chunks=self._chunks, bytes=self._bytes)
        await self._context.write(transfer_pb2.LaneResponse(done=done))

    def landed(self, notice: Notice) -> None:
        """Checks a chunk that is in the slab, and counts it."""
        if self._refusal is not None:
            return
        try:
            self._check(notice)
            self._landing.arrived(
                slot=self._slot,
                generation=self._generation,
                offset=notice.offset,
                length=notice.length,
            )
        except TandemError as error:
            self.refuse(error)
            return
        except Exception:  # noqa: BLE001  the other lanes' notices come in the same task
            _log.exception("bytes that landed could not be taken", slot=self._slot)
            self.refuse(
                InternalError(
                    "bytes that landed could not be taken, by a defect of this worker; its log has "
                    "the cause; start a new attempt"
                )
            )
            return
        self._chunks += 1
        self._bytes += notice.length
        self._arrived.set()
        if self._chunks - self._told_chunks >= self._tell_every:
            self._news.set()

    def refuse(self, error: TandemError) -> None:
        """Asks the sender to stop; the first reason counts."""
        if self._refusal is None:
            self._refusal = error
        self._tell()

    def _check(self, notice: Notice) -> None:
        if (notice.slot, notice.generation) != (self._slot, self._generation):
            raise StaleWriteError(
                f"a lane of slot {self._slot} generation {self._generation} told of slot "
                f"{notice.slot} generation {notice.generation}: a lane serves one lease; "
                "open another lane"
            )
        if notice.check is NoticeCheck.MANIFEST:
            self._check_range(notice)
            return
        chunk = self._landing.landed(
            slot=notice.slot,
            generation=notice.generation,
            offset=notice.offset,
            length=notice.length,
        )
        if crc32(chunk) != notice.crc32:
            raise TransportError(
                f"the checksum of {notice.length} bytes at {notice.offset} is wrong: they were "
                "damaged on the way; start a new attempt"
            )

    def _check_range(self, notice: Notice) -> None:
        """A chunk without a sum of its own is in device memory; the manifest's are for later."""
        if not self._direct or notice.offset + notice.length > self._window.nbytes:
            raise StaleWriteError(
                f"a write of {notice.length} bytes at {notice.offset} without a checksum does not "
                f"fit a lease of {self._window.nbytes} bytes in this worker's memory: the sender "
                "planned another layout or runs another version; start a new attempt"
            )

    def _tell(self) -> None:
        self._news.set()
        self._arrived.set()

    async def _listen(self) -> None:
        while isinstance(message := await self._context.read(), transfer_pb2.LaneRequest):
            kind = message.WhichOneof("event")
            if kind == "heartbeat":
                self._hear_heartbeat(message.heartbeat.sequence)
            elif kind == "end" and message.end.sums:
                await self._settle_ahead(message.end)
                return
            elif kind in {"end", "drained"}:
                self.drained = True  # either is said only when no write is under way
                if kind == "end":
                    await self._settle(message.end)
                    self.clean = True
                elif self._refusal is not None:
                    raise self._refusal
                return
        raise self._refusal or TransportError(
            "the lane ended without an end or a goodbye: the sender stopped half-way; "
            "nothing can be committed from it"
        )

    async def _settle_ahead(self, end: transfer_pb2.LaneEnd) -> None:
        """The same where the last writes may be under way: their sender may still give up."""
        if not self._direct:
            raise TransportError(
                "sums came with the end of a lane to host memory, where chunks have their own: the "
                "sender runs another version; upgrade it"
            )
        if len(end.sums) > MOST_SUMS:
            raise TransportError(
                f"{len(end.sums)} sums came with the end of a lane, and no cache has more than "
                f"{MOST_SUMS} segments: the sender is broken or runs another version; upgrade it"
            )
        # Not cancelled, which would leave grpc with a buffer that is gone: it ends with the call.
        hearing = asyncio.ensure_future(self._context.read())
        hearing.add_done_callback(self._heard_more)
        try:
            await self._settle(end, unless=hearing.done)
        except TandemError as error:
            self.refuse(error)  # its sender says when nothing of it is under way
        else:
            if not hearing.done():
                self.drained = self.clean = True
                self.sums = tuple(end.sums)
                return
        await asyncio.wait({hearing})
        last = hearing.result()
        self.drained = isinstance(last, transfer_pb2.LaneRequest) and last.HasField("drained")
        raise self._refusal or TransportError(
            "the sender gave up after it had ended its lane: its last writes failed; nothing can "
            "be committed from it"
        )

    def _heard_more(self, hearing: asyncio.Future[transfer_pb2.LaneRequest]) -> None:
        """After an end: its sender gave up, or nobody asks any more for what comes."""
        if not hearing.cancelled():
            hearing.exception()
        self._arrived.set()

    def _hear_heartbeat(self, sequence: int) -> None:
        try:
            self._landing.heartbeat(self._slot, self._generation)
        except TandemError as error:
            self.refuse(error)
            return
        self._heartbeat = sequence
        self._tell()

    async def _settle(
        self, end: transfer_pb2.LaneEnd, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Waits for notices that are still on their way, unless that has no use any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._chunks < end.chunks and self._refusal is None and not unless():
                    self._hurry()
                    self._arrived.clear()
                    await self._arrived.wait()
        if self._refusal is not None:
            raise self._refusal
        if unless():
            return
        if (self._chunks, self._bytes) != (end.chunks, end.bytes):
            raise TransportError(
                f"{self._chunks} chunks of {self._bytes} bytes landed where the sender wrote "
                f"{end.chunks} of {end.bytes}: notices were lost; start a new attempt"
            )
        self._landing.heartbeat(self._slot, self._generation)

    async def _answer(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._refusal is not None:
                refused = transfer_pb2.LaneResponse(refused=error_to_pb(self._refusal))
                await self._context.write(refused)
                return
            if self.clean:
                return
            self._told_chunks = self._chunks
            progress = transfer_pb2.LaneProgress(chunks=self._chunks, heartbeat=self._heartbeat)
            await self._context.write(transfer_pb2.LaneResponse(progress=progress))
