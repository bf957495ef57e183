"""Parts of registered memory: read where they are, in few large writes, and checked by range."""

from functools import partial

import pytest
import torch

from shared.errors import StaleWriteError, TransportError
from shared.kv.memory import HostMemory, MemoryPart
from shared.kv_memory.tensor_memory import TensorMemory, unshareable
from shared.transport import nixl_sender
from shared.transport.base import TransportContext
from shared.transport.nixl import STAGED_CHUNKS, NixlTransport
from shared.transport.nixl_agent import NixlAgent, treatment
from shared.types.kv_manifest import SegmentCheck
from tests.support.transfer_parts import MODEL, NIXL_DEVICE, Receiver, needs_nixl, receiver

pytestmark = needs_nixl


def filled(nbytes: int) -> TensorMemory:
    memory = TensorMemory(nbytes, device="cpu")
    generator = torch.Generator().manual_seed(1)
    memory.bytes.copy_(torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator))
    return memory


def transport_over(memory: TensorMemory) -> NixlTransport:
    return NixlTransport(TransportContext(model=MODEL, incarnation="sender-1", memory=memory))


async def push(end: Receiver, transport: NixlTransport, parts: list[tuple[int, MemoryPart]]):
    lease, grant = end.grant(sum(part.nbytes for _, part in parts))
    sender = transport.sender()
    await sender.open(address=end.address, grant=grant)
    for offset, part in parts:
        await sender.write(offset, part)
    return lease, await sender.seal()


async def test_registered_bytes_arrive_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_sender, "DIRECT_BYTES", 100_000)
    memory = filled(1 << 20)
    monkeypatch.setattr(NixlAgent, "_stage", None)  # nothing is staged
    async with receiver(NIXL_DEVICE) as end:
        transport = transport_over(memory)
        parts = [(0, MemoryPart(memory, 4096, 333_333)), (333_333, MemoryPart(memory, 64, 1))]
        lease, stats = await push(end, transport, parts)
        wanted = b"".join(bytes(part.on_host()) for _, part in parts)
        assert end.bytes_of(lease) == wanted
        assert (stats.bytes, transport.check) == (333_334, SegmentCheck.SUM64)
        assert 0 < stats.wire_seconds <= stats.seconds
        await transport.close()


async def test_memory_that_is_not_registered_is_staged() -> None:
    own, other = filled(4096), filled(3 << 20)
    async with receiver(NIXL_DEVICE, slab_bytes=4 << 20) as end:
        transport = transport_over(own)
        lease, _ = await push(end, transport, [(0, MemoryPart(other, 0, 3 << 20))])
        assert end.bytes_of(lease) == bytes(other.fetch(0, 3 << 20))
        await transport.close()


async def test_a_copy_that_the_device_refuses_fails_the_transfer_and_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only when all that is under way has ended; the next transfer finds every slot free."""
    own, other = filled(4096), filled(9 << 20)
    stored = TensorMemory.store

    def refuse(memory: TensorMemory, start: int, data: memoryview) -> None:
        if start == 2 << 20:
            raise RuntimeError("CUDA error: out of memory")
        stored(memory, start, data)

    async with receiver(NIXL_DEVICE, slab_bytes=32 << 20) as end:
        transport = transport_over(own)
        monkeypatch.setattr(TensorMemory, "store", refuse)
        _, grant = end.grant(9 << 20)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(TransportError, match="could not be copied to device memory"):
            await sender.write(0, MemoryPart(other, 0, 9 << 20))
        await sender.abort()
        monkeypatch.setattr(TensorMemory, "store", stored)
        assert sorted(transport.agent._slots) == list(range(STAGED_CHUNKS))
        lease, _ = await push(end, transport, [(0, MemoryPart(other, 0, 9 << 20))])
        assert end.bytes_of(lease) == bytes(other.fetch(0, 9 << 20))
        await transport.close()


@pytest.mark.parametrize("name", ["grpc", "loopback"])
async def test_transports_of_the_host_copy_a_part_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("shared.transport.base.HOST_PIECE_BYTES", 300_000)
    memory, lengths = filled(1 << 20), []
    fetched = memory.fetch

    def fetch(start: int, length: int) -> memoryview:
        lengths.append(length)
        return fetched(start, length)

    monkeypatch.setattr(memory, "fetch", fetch)
    async with receiver(name) as end:
        lease, grant = end.grant(1_000_000)
        sender = end.transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, MemoryPart(memory, 64, 1_000_000))
        stats = await sender.seal()
        assert end.bytes_of(lease) == bytes(fetched(64, 1_000_000))
    assert (stats.bytes, lengths) == (1_000_000, [300_000, 300_000, 300_000, 100_000])


async def test_a_part_that_leaves_the_lease_is_refused_here() -> None:
    memory = filled(4096)
    async with receiver(NIXL_DEVICE) as end:
        transport = transport_over(memory)
        _, grant = end.grant(1024)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        with pytest.raises(StaleWriteError, match="leave the lease"):
            await sender.write(1000, MemoryPart(memory, 0, 25))
        await sender.abort()
        await transport.close()


@pytest.mark.parametrize("ours", ["host", "device"])
async def test_other_kinds_of_memory_do_not_meet(ours: str) -> None:
    name = NIXL_DEVICE if ours == "host" else "nixl"
    async with receiver(name) as end:
        memory = None if ours == "host" else filled(64)
        transport = NixlTransport(TransportContext(model=MODEL, incarnation="s", memory=memory))
        _, grant = end.grant(64)
        with pytest.raises(TransportError, match="another kind of memory"):
            await transport.sender().open(address=end.address, grant=grant)
        await transport.close()


async def test_a_write_without_a_checksum_is_refused_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sender that lies about its memory: the receiver's is the host's, which sums chunks."""
    told = treatment(HostMemory(64))
    monkeypatch.setattr("shared.transport.nixl_agent.treatment", lambda _memory: told)
    memory = filled(64)
    async with receiver("nixl") as end:
        transport = transport_over(memory)
        _, grant = end.grant(64)
        sender = transport.sender()
        await sender.open(address=end.address, grant=grant)
        await sender.write(0, MemoryPart(memory, 0, 64))
        with pytest.raises(StaleWriteError, match="without a checksum"):
            await sender.seal()
        await sender.abort()
        await transport.close()


@pytest.mark.parametrize(
    ("variable", "text", "refused"),
    [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments : true", True),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", True),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:False,backend:native", False),
    ],
)
def test_an_allocator_that_maps_pieces_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, refused: bool
) -> None:
    monkeypatch.setenv(variable, text)
    assert bool(unshareable(torch.device("cuda"))) == refused
    assert not unshareable(torch.device("cpu"))


def test_a_memory_stores_and_fetches() -> None:
    for memory in (HostMemory(128), partial(TensorMemory, device="cpu")(128), filled(64).beside(9)):
        memory.store(3, memoryview(b"abc"))
        memory.store(3, memoryview(b""))
        assert bytes(memory.fetch(3, 3)) == b"abc"
        memory.enter_thread()
