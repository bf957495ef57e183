"""A scripted decode worker: a real gRPC server with a real landing slab, and switches to misbehave.

It grants, receives over any transport that speaks to a `SlabWriter`, verifies checksums at commit
and remembers what it adopted; it never generates a token.
"""

# ruff: noqa: N802  names of RPCs

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc.aio

from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.errors import ManifestError, StaleWriteError
from shared.kv.slab import Slab, SlabLease
from shared.rpc.server import RpcServer, build_server
from shared.transport.grpc_receiver import add_transfer_service
from shared.transport.hello import Peer
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine
from shared.types.kv_manifest import KvManifest
from shared.types.model_identity import ModelIdentity
from shared.wire.errors import error_to_pb
from shared.wire.identity import handoff_from_pb
from shared.wire.manifest import manifest_from_pb


@dataclass(slots=True)
class Script:
    """How the peer behaves; counts go down as they are used."""

    busy: int = 0
    """Reserve calls to answer with busy."""
    busy_reason: str = "slab_full"
    """Why."""
    retry_after_ms: int = 10
    """Advice that goes with it."""
    reject_commits: int = 0
    """Commits to refuse."""
    corrupt: int = 0
    """Handoffs of which one byte is flipped on arrival, so that their commit fails."""
    die_after_bytes: int | None = None
    """The server goes away without a word once this many bytes landed."""
    lease_ms: int = 30_000
    """Lease of a grant."""
    transports: tuple[str, ...] = ("grpc",)
    """Transports it accepts."""
    writes_open: asyncio.Event = field(default_factory=asyncio.Event)
    """While clear, Commit waits; set by default."""


@dataclass(slots=True)
class Landing:
    """One handoff that holds a slot."""

    machine: HandoffStateMachine
    lease: SlabLease
    request: decode_pb2.ReserveRequest
    corrupted: bool = False
    writing: bool = False


@dataclass(frozen=True, slots=True)
class AdoptedKv:
    """What a commit left here."""

    manifest: KvManifest
    data: bytes
    prompt_token_ids: tuple[int, ...]


class DecodePeer(decode_pb2_grpc.DecodeServiceServicer):
    """The scripted worker; `await start()`, and `stop()` at the end."""

    def __init__(
        self, model: ModelIdentity, *, slab_bytes: int = 32 << 20, worker_id: str = "d0"
    ) -> None:
        self.model = model
        self.worker_id = worker_id
        self.incarnation = f"{worker_id}-incarnation"
        self.token = f"{worker_id}-token".encode()
        self.script = Script()
        self.script.writes_open.set()
        self.slab = Slab(slab_bytes)
        self.adopted: dict[HandoffKey, AdoptedKv] = {}
        self.aborted: list[tuple[HandoffKey, str]] = []
        self.reserved: list[HandoffKey] = []
        self.landed_bytes = 0
        self.dead = asyncio.Event()
        self._live: dict[HandoffKey, Landing] = {}
        self._by_slot: dict[int, Landing] = {}
        self._past: set[HandoffKey] = set()
        self._server: RpcServer | None = None
        self._death: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    @property
    def holds_nothing(self) -> bool:
        """Whether no handoff before adoption holds a slot."""
        return not self._live and self.slab.num_leases == 0

    async def start(self) -> None:
        self._server = build_server(
            host="127.0.0.1", port=0, service_names=["tandem.v1.DecodeService"]
        )
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(self, self._server.server)
        own = Peer(model=self.model, incarnation=self.incarnation)
        add_transfer_service(self._server.server, writer=self, own=own)
        await self._server.start()

    async def stop(self) -> None:
        if self._death is not None:
            await self._death
        if self._server is not None:
            await self._server.stop()

    # --- DecodeService ---

    async def Reserve(
        self,
        request: decode_pb2.ReserveRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> decode_pb2.ReserveResponse:
        key = handoff_from_pb(request.handoff)
        if self.script.busy:
            self.script.busy -= 1
            busy = decode_pb2.DecodeBusy(
                retry_after_ms=self.script.retry_after_ms, reason=self.script.busy_reason
            )
            return decode_pb2.ReserveResponse(busy=busy)
        if key in self._past or key in self._live:
            raise StaleWriteError(f"{key} was reserved before")
        lease = self.slab.reserve(request.slab_bytes)
        if lease is None:
            busy = decode_pb2.DecodeBusy(retry_after_ms=10, reason="slab_full")
            return decode_pb2.ReserveResponse(busy=busy)
        landing = Landing(HandoffStateMachine(key), lease, request)
        landing.machine.advance(HandoffState.RESERVED)
        if self.script.corrupt:
            self.script.corrupt -= 1
            landing.corrupted = True
        self._live[key] = self._by_slot[lease.slot] = landing
        self.reserved.append(key)
        grant = decode_pb2.SlabGrant(
            slot=lease.slot,
            generation=lease.generation,
            lease_ms=self.script.lease_ms,
            transports=self.script.transports,
            incarnation=self.incarnation,
            token=self.token,
        )
        return decode_pb2.ReserveResponse(grant=grant)

    async def Commit(
        self,
        request: decode_pb2.CommitRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> decode_pb2.CommitResponse:
        await self.script.writes_open.wait()
        manifest = manifest_from_pb(request.manifest)
        landing = self._live.get(manifest.handoff)
        if landing is None or landing.lease.generation != request.generation:
            raise StaleWriteError(f"{manifest.handoff} holds nothing here")
        if request.token != self.token:
            raise StaleWriteError(f"{manifest.handoff} was granted to somebody else")
        while landing.machine.state in {HandoffState.RESERVED, HandoffState.STREAMING}:
            await asyncio.sleep(0.001)  # a commit may come before the end of its push
            if self._live.get(manifest.handoff) is not landing:
                raise StaleWriteError(f"{manifest.handoff} holds nothing here any more")
        landing.machine.advance(HandoffState.COMMITTED)
        data = bytes(
            self.slab.view(request.slot, request.generation, 0, landing.request.slab_bytes)
        )
        error = self._verify(manifest, data)
        if error is not None:
            self._drop(landing)
            return decode_pb2.CommitResponse(rejected=error_to_pb(error))
        landing.machine.advance(HandoffState.ADOPTED)
        self._drop(landing)
        self.adopted[manifest.handoff] = AdoptedKv(manifest, data, tuple(request.prompt_token_ids))
        return decode_pb2.CommitResponse(adopted=decode_pb2.Adopted(seconds=0.0, lease_ms=30_000))

    async def Abort(
        self,
        request: decode_pb2.AbortRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> decode_pb2.AbortResponse:
        key = handoff_from_pb(request.handoff)
        self.aborted.append((key, request.reason))
        self._past.add(key)
        self.adopted.pop(key, None)
        landing = self._live.get(key)
        drained = landing is None or not landing.writing
        if landing is not None:
            self._drop(landing)
        return decode_pb2.AbortResponse(drained=drained)

    async def Decode(
        self,
        _request: decode_pb2.DecodeRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        nothing: tuple[decode_pb2.DecodeResponse, ...] = ()
        for response in nothing:
            yield response

    async def Cancel(
        self,
        _request: decode_pb2.DecodeServiceCancelRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> decode_pb2.DecodeServiceCancelResponse:
        return decode_pb2.DecodeServiceCancelResponse(cancelled=False)

    # --- SlabWriter ---

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        landing = self._by_slot.get(slot)
        if landing is None or landing.lease.generation != generation or token != self.token:
            raise StaleWriteError(f"slot {slot} generation {generation} is not granted to you")

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        landing = self._writable(slot, generation)
        self.slab.write(slot=slot, generation=generation, offset=offset, data=data)
        if landing.corrupted:
            view = self.slab.view(slot, generation, offset, 1)
            view[0] ^= 0xFF
            landing.corrupted = False
        self.landed_bytes += data.nbytes
        limit = self.script.die_after_bytes
        if limit is not None and self.landed_bytes >= limit and self._death is None:
            self._death = asyncio.get_running_loop().create_task(self._die())

    def heartbeat(self, slot: int, generation: int) -> None:
        self._writable(slot, generation)

    def writer_closed(self, slot: int, generation: int, *, clean: bool) -> None:
        landing = self._by_slot.get(slot)
        if landing is None or landing.lease.generation != generation:
            return
        landing.writing = False
        if clean:
            landing.machine.advance(HandoffState.SEALED)
        else:
            self._drop(landing)

    def _writable(self, slot: int, generation: int) -> Landing:
        landing = self._by_slot.get(slot)
        if landing is None or landing.lease.generation != generation:
            raise StaleWriteError(f"slot {slot} generation {generation} is not granted")
        landing.writing = True
        if landing.machine.state is HandoffState.RESERVED:
            landing.machine.advance(HandoffState.STREAMING)
        return landing

    def _verify(self, manifest: KvManifest, data: bytes) -> ManifestError | None:
        if self.script.reject_commits:
            self.script.reject_commits -= 1
            return ManifestError("the script refuses this commit")
        for segment in manifest.segments:
            piece = data[segment.offset : segment.offset + segment.length]
            if zlib.crc32(piece) != segment.crc32:
                return ManifestError(f"segment {segment.kind.value} {segment.index} is damaged")
        return None

    def _drop(self, landing: Landing) -> None:
        key, lease = landing.machine.key, landing.lease
        if self._live.pop(key, None) is None:
            return
        del self._by_slot[lease.slot]
        self._past.add(key)
        self.slab.release(lease.slot, lease.generation)

    async def _die(self) -> None:
        assert self._server is not None
        await self._server.server.stop(None)
        self.dead.set()
