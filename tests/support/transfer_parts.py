"""A receiving side with a slab, in process or behind a real gRPC server, for transport tests."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from shared.errors import ConfigError, StaleWriteError
from shared.kv.memory import HostMemory
from shared.kv.slab import Slab, SlabLease
from shared.kv_memory.tensor_memory import TensorMemory
from shared.rpc.server import RpcServer, build_server
from shared.transport.base import (
    Grant,
    KvSender,
    KvTransport,
    LocalEndpoint,
    SlabWindow,
    TransportContext,
)
from shared.transport.grpc_receiver import SERVICE_NAME, add_transfer_service
from shared.transport.hello import Peer
from shared.transport.nixl_library import load_nixl
from shared.transport.nixl_receiver import NixlReceiver, add_nixl_service
from shared.transport.probe_ground import SPARE_BYTES, ProbeGround
from shared.transport.probe_service import add_probe_service
from shared.transport.probe_switch import ProbedLanding, ProbedWriter
from shared.transport.registry import transport_registry
from shared.types.model_identity import ModelIdentity
from shared.types.topology import Topology
from tests.support.waiting import until

COPYING = ("loopback", "grpc")
"""Transports whose receiver copies each chunk, and can refuse it."""

NIXL_DEVICE = "nixl-device"
"""NIXL between memories of the device that computes, which is the CPU here."""

DIRECT = ("nixl", NIXL_DEVICE)
"""Transports that write into the slab themselves."""


def nixl_missing() -> str:
    """Why NIXL cannot be tried here; empty when it can."""
    try:
        load_nixl()
    except ConfigError as error:
        return error.message
    return ""


needs_nixl = pytest.mark.skipif(bool(nixl_missing()), reason=f"no NIXL: {nixl_missing()}")


def each_transport(*, without: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Runs a test for every registered transport that works here."""
    names = [name for name in (*transport_registry().names(), NIXL_DEVICE) if name not in without]
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=[needs_nixl] if n in DIRECT else []) for n in names]
    )


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
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    drained: list[bool] = field(default_factory=list)
    sums: list[tuple[int, ...]] = field(default_factory=list)
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

    def window(self, slot: int, generation: int) -> SlabWindow:
        lease = self.slab.lease(slot, generation)
        return SlabWindow(offset=lease.offset, nbytes=lease.nbytes)

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        self.heartbeat(slot, generation)
        self.arrivals.append((offset, length))

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        if self.before_write is not None:
            self.before_write()
        return self.slab.view(slot, generation, offset, length)

    def writer_closed(
        self,
        slot: int,
        generation: int,
        *,
        clean: bool,
        drained: bool = True,
        sums: Sequence[int] = (),
    ) -> None:
        self.sums.append(tuple(sums))
        self.closed.append(clean)
        self.drained.append(drained)


@dataclass
class Receiver:
    """The decode side of a pair, as far as transports see it."""

    slab: Slab
    writer: RecordingWriter
    address: str
    transport: KvTransport
    server: RpcServer | None = None
    direct: NixlReceiver | None = None
    probes: ProbeGround | None = None

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

    async def half_written(self, payload: bytes) -> tuple[SlabLease, KvSender]:
        """A lease of the size of `payload` whose first half has landed, and its open sender."""
        lease, grant = self.grant(len(payload))
        half = len(payload) // 2
        sender = self.transport.sender()
        await sender.open(address=self.address, grant=grant)
        await sender.write(0, memoryview(payload)[:half])
        await until(lambda: self.bytes_of(lease)[:half] == payload[:half])
        return lease, sender

    def bytes_of(self, lease: SlabLease) -> bytes:
        return bytes(self.slab.view(lease.slot, lease.generation, 0, lease.nbytes))


def registered(name: str) -> str:
    """Its name among the transports."""
    return "nixl" if name == NIXL_DEVICE else name


def open_transport(name: str, context: TransportContext) -> KvTransport:
    """A sending end by its name here."""
    if name == NIXL_DEVICE:
        context = replace(context, memory=TensorMemory(1 << 22, device="cpu"))
    return transport_registry().get(registered(name))(context)


@asynccontextmanager
async def receiver(
    name: str,
    *,
    slab_bytes: int = 2**20,
    sender_model: ModelIdentity = MODEL,
    place: Topology | None = None,
) -> AsyncIterator[Receiver]:
    """A receiver and a transport of the given name that reaches it."""
    on_device = name == NIXL_DEVICE
    allocate = partial(TensorMemory, device="cpu") if on_device else HostMemory
    slab = Slab(slab_bytes, spare_bytes=SPARE_BYTES, allocate=allocate)
    if isinstance(slab.memory, TensorMemory):
        slab.memory.bytes.zero_()  # as the host's is
    probes = ProbeGround(slab.memory, offset=slab.total_bytes, incarnation=INCARNATION)
    writer = RecordingWriter(slab)
    server: RpcServer | None = None
    address = "here"
    direct: NixlReceiver | None = None
    if name != "loopback":
        server = build_server(host="127.0.0.1", port=0, service_names=[SERVICE_NAME])
        own = Peer(model=MODEL, incarnation=INCARNATION, place=place or Topology())
        if name in DIRECT:
            direct = NixlReceiver(slab.memory, ProbedLanding(writer, probes))
            add_nixl_service(server.server, direct)
        offers = [] if direct is None else [direct.offer]
        add_transfer_service(
            server.server, writer=ProbedWriter(writer, probes), own=own, direct=offers
        )
        add_probe_service(server.server, probes)
        await server.start()
        address = server.address
    endpoint = LocalEndpoint(writer=writer, model=MODEL, incarnation=INCARNATION)
    context = TransportContext(
        model=sender_model,
        incarnation="sender-1",
        local_endpoints={"here": endpoint},
    )
    transport = open_transport(name, context)
    try:
        yield Receiver(slab, writer, address, transport, server, direct, probes)
    finally:
        await transport.close()
        if server is not None:
            await server.stop()
        if direct is not None:
            await direct.close()
