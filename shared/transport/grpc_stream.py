"""The gRPC transport: raw frames on one bidirectional stream per handoff, with credits.

The prefill side sends frames and reads credits; the decode side checks each frame, writes it into
the slab and answers. Only so many frames are unanswered, so a slow reader bounds the sender's
memory. All bulk data of one pair shares one connection, apart from control calls.
"""

import asyncio
import time
from collections.abc import Sequence

import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.errors import (
    HandoffError,
    StaleWriteError,
    TandemError,
    TransportError,
)
from shared.kv.memory import KvBytes
from shared.rpc.channel_pool import ChannelPool
from shared.transport.base import (
    Grant,
    SenderState,
    TransferStats,
    TransportContext,
    host_pieces,
)
from shared.transport.frames import FrameKind, encode_frame
from shared.transport.greeting import answers_of, say_hello, token_metadata
from shared.transport.hello import Peer
from shared.types.kv_manifest import SegmentCheck

NAME = "grpc"
"""Name in grants, cards and metrics."""

_PUSH_METHOD = "/tandem.v1.TransferService/Push"

_PushCall = grpc.aio.StreamStreamCall[bytes, bytes]


class GrpcTransport:
    """Senders over gRPC, one connection for each decode worker.

    Args:
        context: this side.
    """

    name = NAME
    check = SegmentCheck.CRC32

    def __init__(self, context: TransportContext) -> None:
        self.chunk_bytes = context.chunk_bytes
        self._own = Peer(model=context.model, incarnation=context.incarnation)
        self._channels = ChannelPool(tls=context.tls, own_connection=True)

    def sender(self) -> "GrpcSender":
        """A sender for one handoff."""
        return GrpcSender(self)

    async def close(self) -> None:
        """Drops all connections; senders still open fail."""
        await self._channels.close()

    async def start_push(self, address: str, grant: Grant) -> tuple[_PushCall, int]:
        """Says hello and opens a push stream; returns it and its credits.

        Raises:
            TransportError: unreachable, restarted since the grant, or another model or protocol.
        """
        channel = self._channels.get(address)
        answer = await say_hello(channel, address=address, own=self._own, grant=grant)
        if answer.max_chunk_bytes < self.chunk_bytes or answer.credits < 1:
            raise TransportError(
                f"{address} takes frames of {answer.max_chunk_bytes} bytes and gives "
                f"{answer.credits} credits: its settings do not fit; lower chunk_bytes here"
            )
        call: _PushCall = channel.stream_stream(_PUSH_METHOD)(metadata=token_metadata(grant))
        return call, answer.credits


class GrpcSender:
    """Sends one handoff's bytes; made by `GrpcTransport.sender`."""

    takes_sums = False
    """See `KvSender.takes_sums`."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport
        self._state = SenderState.NEW
        self._address = ""
        self._grant = Grant(slot=0, generation=0)
        self._call: _PushCall | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()
        self._write_lock = asyncio.Lock()
        self._credits = 0
        self._drained = False
        self._failure: TandemError | None = None
        self._frames_sent = 0
        self._sent_bytes = 0
        self._written_bytes = 0
        self._busy_seconds = 0.0

    async def open(self, *, address: str, grant: Grant) -> None:
        """Connects and checks the other side; see `KvSender.open`."""
        assert self._state is SenderState.NEW, "a sender is for one handoff"
        self._address = address
        self._grant = grant
        call, self._credits = await self._transport.start_push(address, grant)
        self._call = call
        self._state = SenderState.OPEN
        self._tasks = [
            asyncio.create_task(self._read_answers(call)),
            asyncio.create_task(self._keep_alive(call)),
        ]

    async def write(self, offset: int, data: KvBytes) -> None:
        """Sends bytes in frames; see `KvSender.write`."""
        started = time.perf_counter()
        async for piece in host_pieces(data):
            for start in range(0, piece.nbytes, self._transport.chunk_bytes):
                payload = piece[start : start + self._transport.chunk_bytes]
                await self._take_credit()
                await self._send(FrameKind.DATA, offset=offset + start, payload=payload)
                self._sent_bytes += payload.nbytes
            offset += piece.nbytes
        self._busy_seconds += time.perf_counter() - started

    async def seal(self, *, sums: Sequence[int] = ()) -> TransferStats:
        """Sends the end frame and waits for its answer; see `KvSender.seal`."""
        assert not sums, "only where they are taken"
        started = time.perf_counter()
        await self._send(FrameKind.END)
        async with self._changed:
            await self._changed.wait_for(lambda: self._drained or self._failure is not None)
        if not self._drained or self._written_bytes != self._sent_bytes:
            raise self._failure or TransportError(
                f"{self._address} wrote {self._written_bytes} of {self._sent_bytes} bytes: frames "
                "were lost; start a new attempt"
            )
        self._state = SenderState.SEALED
        await self._stop()
        self._busy_seconds += time.perf_counter() - started
        return TransferStats(bytes=self._sent_bytes, seconds=self._busy_seconds)

    async def abort(self) -> None:
        """Tears the stream down and waits for it; a sealed transfer stays sealed."""
        if self._state is not SenderState.SEALED:
            self._state = SenderState.CLOSED
            await self._fail(TransportError("the transfer was given up here; start a new attempt"))
        await self._stop()

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        if self._call is not None and self._state is not SenderState.SEALED:
            self._call.cancel()
        for task in tasks[1:] if self._state is SenderState.SEALED else tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_credit(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._credits > 0 or self._failure is not None)
            if self._failure is None:
                self._credits -= 1

    async def _send(
        self, kind: FrameKind, *, offset: int = 0, payload: memoryview | bytes = b""
    ) -> None:
        if self._state is not SenderState.OPEN or self._call is None:
            raise self._failure or self._state.refusal()
        message = encode_frame(
            kind,
            slot=self._grant.slot,
            generation=self._grant.generation,
            offset=offset,
            payload=payload,
        )
        try:
            async with self._write_lock:
                if self._failure is not None:
                    raise self._failure
                await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._reason(self._call) from error
        except asyncio.CancelledError:
            # grpc says so too when the call, and not this task, was cancelled.
            task = asyncio.current_task()
            if self._failure is None or task is None or task.cancelling():
                raise
            raise self._failure from None
        self._frames_sent += 1

    async def _reason(self, call: _PushCall) -> TandemError:
        """Why the stream is over; the reading task learns it at the same moment."""
        await call.code()
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None)
        assert self._failure is not None
        return self._failure

    async def _read_answers(self, call: _PushCall) -> None:
        async with answers_of(self._address, fail=self._fail):
            async for raw in call:
                answer = transfer_pb2.PushResponse.FromString(raw)
                if answer.HasField("refused"):
                    await self._fail(StaleWriteError(answer.refused.message))
                async with self._changed:
                    self._credits += answer.credits
                    self._written_bytes = answer.written_bytes
                    self._drained = self._drained or answer.drained
                    self._changed.notify_all()

    async def _fail(self, failure: TandemError) -> None:
        async with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()

    async def _keep_alive(self, call: _PushCall) -> None:
        """Renews the lease while nothing else is sent."""
        seen = -1
        while not call.done():
            if seen == self._frames_sent:
                try:
                    await self._send(FrameKind.HEARTBEAT)
                except HandoffError:
                    return  # the reading task holds the reason, the next write raises it
            seen = self._frames_sent
            await asyncio.sleep(self._grant.heartbeat_seconds)
