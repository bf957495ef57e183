"""A receiving side with a slab, in process or behind a real gRPC server, for transport tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shared.errors import StaleWriteError
from shared.kv.slab import Slab, SlabLease
from shared.rpc.server import RpcServer, build_server
from shared.transport.base import Grant, KvTransport, LocalEndpoint, TransportContext
from shared.transport.grpc_receiver import SERVICE_NAME, add_transfer_service
from shared.transport.hello import Peer
from shared.transport.registry import transport_registry
from shared.types.model_identity import ModelIdentity

MODEL = ModelIdentity(
    name="tiny",
    model_hash="abc",
    dtype="float32",
    num_layers=2,
    num_kv_heads=1,
    head_dim=4,
    rope="default",
)

INCARNATION = "receiver-1"

TOKEN = b"of every grant"


@dataclass
class RecordingWriter:
    """Writes into a slab and remembers what happened."""

    slab: Slab
    heartbeats: int = 0
    closed: list[bool] = field(default_factory=list)
    before_write: Callable[[], None] | None = None

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        if self.before_write is not None:
            self.before_write()
        self.slab.write(slot=slot, generation=generation, offset=offset, data=data)

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        self.slab.view(slot, generation, 0, 0)
        if token != TOKEN:
            raise StaleWriteError(f"slot {slot} was granted to somebody else")

    def heartbeat(self, slot: int, generation: int) -> None:
        self.slab.view(slot, generation, 0, 0)
        self.heartbeats += 1

    def writer_closed(self, slot: int, generation: int, *, clean: bool) -> None:
        self.closed.append(clean)


@dataclass
class Receiver:
    """The decode side of a pair, as far as transports see it."""

    slab: Slab
    writer: RecordingWriter
    address: str
    transport: KvTransport
    server: RpcServer | None = None

    def grant(self, nbytes: int, *, lease_ms: int = 30_000) -> tuple[SlabLease, Grant]:
        lease = self.slab.reserve(nbytes)
        assert lease is not None
        return lease, Grant(
            slot=lease.slot,
            generation=lease.generation,
            lease_ms=lease_ms,
            incarnation=INCARNATION,
            token=TOKEN,
        )

    def bytes_of(self, lease: SlabLease) -> bytes:
        return bytes(self.slab.view(lease.slot, lease.generation, 0, lease.nbytes))


@asynccontextmanager
async def receiver(
    name: str, *, slab_bytes: int = 2**20, sender_model: ModelIdentity = MODEL
) -> AsyncIterator[Receiver]:
    """A receiver and a transport of the given name that reaches it."""
    slab = Slab(slab_bytes)
    writer = RecordingWriter(slab)
    server: RpcServer | None = None
    address = "here"
    if name == "grpc":
        server = build_server(host="127.0.0.1", port=0, service_names=[SERVICE_NAME])
        own = Peer(model=MODEL, incarnation=INCARNATION)
        add_transfer_service(server.server, writer=writer, own=own)
        await server.start()
        address = server.address
    endpoint = LocalEndpoint(writer=writer, model=MODEL, incarnation=INCARNATION)
    context = TransportContext(
        model=sender_model, incarnation="sender-1", local_endpoints={"here": endpoint}
    )
    transport = transport_registry().get(name)(context)
    try:
        yield Receiver(slab, writer, address, transport, server)
    finally:
        await transport.close()
        if server is not None:
            await server.stop()
