"""The receiving end of the gRPC transport: checks frames and hands them to a slab writer.

Refusals are raised; the server's interceptors make statuses of them.
"""

from collections.abc import Sequence

import grpc
import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.errors import StaleWriteError, TandemError, TransportError
from shared.transport.base import DEFAULT_CREDITS, MAX_CHUNK_BYTES, SlabWriter
from shared.transport.frames import Frame, FrameKind, decode_frame
from shared.transport.greeting import token_of
from shared.transport.hello import DirectOffer, Peer, check_peer
from shared.wire.errors import error_to_pb
from shared.wire.identity import identity_from_pb, identity_to_pb
from shared.wire.place import place_to_pb

SERVICE_NAME = transfer_pb2.DESCRIPTOR.services_by_name["TransferService"].full_name
"""Full name of the service, for health and reflection."""

_PushContext = grpc.aio.ServicerContext[bytes, bytes]


class TransferReceiver:
    """The decode side of the service: checks frames and hands them to a slab writer.

    Args:
        writer: where chunks go.
        own: this side.
        credit_window: frames a sender may have unanswered.
        direct: other transports that this worker takes, told in Hello.
    """

    def __init__(
        self,
        writer: SlabWriter,
        own: Peer,
        *,
        credit_window: int,
        direct: Sequence[DirectOffer] = (),
    ) -> None:
        self._writer = writer
        self._own = own
        self._direct = tuple(direct)
        self._credit_window = credit_window
        # Half a window at a time: as good as one by one for the sender, and fewer calls.
        self._answer_every = max(1, credit_window // 2)

    async def hello(
        self,
        request: transfer_pb2.HelloRequest,
        _context: grpc.aio.ServicerContext[transfer_pb2.HelloRequest, transfer_pb2.HelloResponse],
    ) -> transfer_pb2.HelloResponse:
        """Compares both sides and introduces this one."""
        other = Peer(
            model=identity_from_pb(request.model),
            incarnation=request.incarnation,
            protocol=request.protocol,
        )
        check_peer(self._own, other)
        return transfer_pb2.HelloResponse(
            protocol=self._own.protocol,
            model=identity_to_pb(self._own.model),
            incarnation=self._own.incarnation,
            credits=self._credit_window,
            max_chunk_bytes=MAX_CHUNK_BYTES,
            direct=[
                transfer_pb2.DirectTransport(name=offer.name, fingerprint=offer.fingerprint)
                for offer in self._direct
            ],
            place=place_to_pb(self._own.place),
        )

    async def push(self, _requests: object, context: _PushContext) -> None:
        """Takes one stream of frames."""
        token = token_of(context)
        lease: tuple[int, int] | None = None
        clean = False
        written = 0
        owed = 0
        try:
            while isinstance(message := await context.read(), bytes):
                try:
                    frame = decode_frame(message)
                    if lease is None:
                        # Only from here on may the end of this stream mean anything to the slot.
                        self._writer.authorize(frame.slot, frame.generation, token=token)
                        lease = (frame.slot, frame.generation)
                    written += self._take(frame, lease)
                except TandemError as error:
                    await context.write(_answer(written=written, refused=error))
                    raise
                if frame.kind is FrameKind.END:
                    clean = True
                    await context.write(_answer(written=written, drained=True))
                    return
                owed += frame.kind is FrameKind.DATA
                if owed >= self._answer_every:
                    await context.write(_answer(new_credits=owed, written=written))
                    owed = 0
            raise TransportError(
                "the stream ended without an end frame: the sender stopped half-way; "
                "nothing can be committed from it"
            )
        finally:
            if lease is not None:
                self._writer.writer_closed(lease[0], lease[1], clean=clean)

    def _take(self, frame: Frame, lease: tuple[int, int]) -> int:
        if (frame.slot, frame.generation) != lease:
            raise StaleWriteError(
                f"a stream of slot {lease[0]} generation {lease[1]} sent a frame of slot "
                f"{frame.slot} generation {frame.generation}: a stream serves one lease; "
                "open another stream"
            )
        if frame.kind is FrameKind.DATA:
            self._writer.write(
                slot=frame.slot,
                generation=frame.generation,
                offset=frame.offset,
                data=frame.payload,
            )
        else:
            self._writer.heartbeat(frame.slot, frame.generation)
        return frame.payload.nbytes if frame.kind is FrameKind.DATA else 0


def add_transfer_service(
    server: grpc.aio.Server,
    *,
    writer: SlabWriter,
    own: Peer,
    credit_window: int = DEFAULT_CREDITS,
    direct: Sequence[DirectOffer] = (),
) -> None:
    """Adds Hello and Push to a server.

    Args:
        server: not yet started.
        writer: where chunks go.
        own: this side's model and incarnation.
        credit_window: frames a sender may have unanswered.
        direct: other transports that this worker takes, told in Hello.
    """
    receiver = TransferReceiver(writer, own, credit_window=credit_window, direct=direct)
    handlers = {
        "Hello": grpc.unary_unary_rpc_method_handler(
            receiver.hello,
            request_deserializer=transfer_pb2.HelloRequest.FromString,
            response_serializer=transfer_pb2.HelloResponse.SerializeToString,
        ),
        "Push": grpc.stream_stream_rpc_method_handler(receiver.push),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))


def _answer(
    *,
    written: int,
    new_credits: int = 0,
    drained: bool = False,
    refused: TandemError | None = None,
) -> bytes:
    return transfer_pb2.PushResponse(
        credits=new_credits,
        written_bytes=written,
        drained=drained,
        refused=None if refused is None else error_to_pb(refused),
    ).SerializeToString()
