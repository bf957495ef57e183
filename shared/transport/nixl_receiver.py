"""The receiving end of the NIXL transport: attaches senders, opens lanes and hears notices."""

import asyncio
import uuid
from typing import Any

import grpc
import grpc.aio
import structlog

from protos.tandem.v1 import transfer_pb2
from shared.errors import InternalError, TandemError, TransportError
from shared.kv.memory import KvMemory
from shared.transport.base import DirectLanding
from shared.transport.greeting import token_of
from shared.transport.grpc_receiver import SERVICE_NAME
from shared.transport.hello import DirectOffer
from shared.transport.nixl_agent import NixlAgent
from shared.transport.nixl_lane import Lane, LaneContext
from shared.transport.nixl_wire import NAME, decode_notice

DIRECT_CREDITS = 64
"""Chunks written and not yet counted: they lie in granted memory, so only a stall is bounded."""

POLL_SECONDS = 0.02
"""Longest wait of one look for notices."""

_log = structlog.get_logger(__name__)


class NixlReceiver:
    """The decode side: owns the agent that the slab is registered with.

    Args:
        memory: the slab's; it must outlive this.
        landing: decides what may land where.
        credit_window: chunks a sender may have written that are not counted yet.

    Raises:
        ConfigError: the library is not installed or does not work here; its code says which.
    """

    def __init__(
        self, memory: KvMemory, landing: DirectLanding, *, credit_window: int = DIRECT_CREDITS
    ) -> None:
        self._landing = landing
        self._credit_window = credit_window
        self._agent = NixlAgent(f"receiver-{uuid.uuid4().hex}", memory)
        self._lanes: dict[bytes, Lane] = {}
        self._listening: asyncio.Task[None] | None = None
        self.late_notices = 0

    @property
    def offer(self) -> DirectOffer:
        """What Hello tells of this transport."""
        return DirectOffer(name=NAME, fingerprint=self._agent.fingerprint)

    @property
    def num_lanes(self) -> int:
        """Lanes that are open."""
        return len(self._lanes)

    async def attach(
        self,
        request: transfer_pb2.AttachRequest,
        context: grpc.aio.ServicerContext[transfer_pb2.AttachRequest, transfer_pb2.AttachResponse],
    ) -> transfer_pb2.AttachResponse:
        """Shows the landing memory to the holder of a grant; nothing of the peer is decoded."""
        self._landing.authorize(request.slot, request.generation, token=token_of(context))
        if (request.transport, request.fingerprint) != (NAME, self._agent.fingerprint):
            raise TransportError(
                f"this worker takes {NAME} with another fingerprint: the workers run other "
                "versions of it; install the same version on both"
            )
        return transfer_pb2.AttachResponse(metadata=await self._agent.metadata())

    async def lane(self, _requests: object, context: LaneContext) -> None:
        """Serves one handoff, until its sender is known to be still or gone."""
        opening = await _opening(context)
        slot, generation = opening.slot, opening.generation
        self._landing.authorize(slot, generation, token=token_of(context))
        window = self._landing.window(slot, generation)
        lane = Lane(opening, window=window, landing=self._landing, context=context)
        self._lanes[lane.key] = lane
        self._listen()
        try:
            await lane.serve(
                memory=self._agent.memory,
                credit_window=self._credit_window,
                hurry=self._agent.hurry,
            )
        finally:
            del self._lanes[lane.key]
            lane.close()
        if lane.clean:
            # Said only now: whoever hears it may commit.
            await lane.say_done()

    async def close(self) -> None:
        """Stops listening and frees the agent; twice is fine."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._agent.close()

    def _listen(self) -> None:
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._hear_notices())

    async def _hear_notices(self) -> None:
        """Runs while a lane is open; the next lane starts it again."""
        try:
            while self._lanes:
                for raw in await self._agent.notices(wait_s=POLL_SECONDS):
                    self._hear(raw)
        except TransportError as error:
            self._refuse_all(error)
        except Exception:  # noqa: BLE001  lanes that nobody listens to would wait out their leases
            _log.exception("listening for notices ended")
            self._refuse_all(
                InternalError(
                    "this worker stopped hearing what landed, by a defect of its own; its log has "
                    "the cause; start a new attempt"
                )
            )

    def _refuse_all(self, error: TandemError) -> None:
        for lane in self._lanes.values():
            lane.refuse(error)

    def _hear(self, raw: bytes) -> None:
        try:
            notice = decode_notice(raw)
        except TransportError as error:
            _log.warning("a notice was dropped", error=error.message)
            return
        lane = self._lanes.get(notice.key)
        if lane is None:
            self.late_notices += 1
            _log.warning("a notice came late", slot=notice.slot, generation=notice.generation)
            return
        lane.landed(notice)


async def _opening(context: LaneContext) -> transfer_pb2.LaneOpen:
    first = await context.read()
    if not isinstance(first, transfer_pb2.LaneRequest) or not first.HasField("open"):
        raise TransportError(
            "a lane began without saying for what: the sender runs another version; upgrade it"
        )
    if first.open.transport != NAME:
        raise TransportError(
            f"a lane of transport {first.open.transport!r} was asked for, and this worker has "
            f"{NAME}: choose that or grpc"
        )
    return first.open


def add_nixl_service(server: grpc.aio.Server, receiver: NixlReceiver) -> None:
    """Adds Attach and Lane to a server that has Hello already; before it starts."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Attach": grpc.unary_unary_rpc_method_handler(
            receiver.attach,
            request_deserializer=transfer_pb2.AttachRequest.FromString,
            response_serializer=transfer_pb2.AttachResponse.SerializeToString,
        ),
        "Lane": grpc.stream_stream_rpc_method_handler(
            receiver.lane,
            request_deserializer=transfer_pb2.LaneRequest.FromString,
            response_serializer=transfer_pb2.LaneResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
