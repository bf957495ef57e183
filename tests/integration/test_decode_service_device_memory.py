"""A decode worker whose slab is device memory: what lands there, what is refused, which tokens."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decode_service.app import DecodeServer
from decode_service.engine.device_adoption import DeviceAdoption
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import KvManifest
from tests.support.decode_server import decode_server, direct_tokens
from tests.support.device_peer import over_nixl, summed
from tests.support.prefill_peer import Faults, PrefillPeer, Prepared, prefill_peer, prepare
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl

WAYS = {"transports": ("nixl", "grpc"), "kv_memory": "device"}


@pytest.fixture
async def server(tiny_model_dir: Path, profile: Path) -> AsyncIterator[DecodeServer]:
    """Idle again in the end, with nothing held."""
    async with decode_server(tiny_model_dir, profile, **WAYS) as started:  # type: ignore[arg-type]
        yield started


@pytest.fixture
async def peer(server: DecodeServer) -> AsyncIterator[PrefillPeer]:
    async with prefill_peer(server.core.identity, server.address) as opened:
        yield opened


def looked_at_commit(server: DecodeServer, monkeypatch: pytest.MonkeyPatch) -> list[HandoffKey]:
    """Handoffs whose bytes were looked at after their commit alone."""
    adoption = server.core.worker.intake._adoption
    assert isinstance(adoption, DeviceAdoption)
    looked, adopt = [], adoption._adopt

    def noted(manifest: KvManifest, *rest: object) -> object:
        looked.append(manifest.handoff)
        return adopt(manifest, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(adoption, "_adopt", noted)
    return looked


def behind(server: DecodeServer) -> dict[str, float]:
    """Commits that copied all of it themselves, by reason, as the metrics page tells."""
    return {
        sample.labels["reason"]: sample.value
        for metric in server._registry.collect()
        for sample in metric.samples
        if sample.name == "tandem_commits_behind_total"
    }


@pytest.mark.parametrize("mode", ["identity", "shared", "layer", "head"])
@pytest.mark.parametrize("way", ["torch", "triton", "torch as it lands", "triton as it lands"])
async def test_what_landed_on_the_device_decodes_to_the_same_tokens(
    tiny_model: Transformer,
    server: DecodeServer,
    peer: PrefillPeer,
    mode: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, announces = way.startswith("triton"), "as it lands" in way
    peer.announces, looked = announces, looked_at_commit(server, monkeypatch)
    adoption = server.core.worker.intake._adoption
    assert isinstance(adoption, DeviceAdoption)
    adoption._kernel = kernel
    assert adoption.name == ("triton" if kernel else "torch")
    prepared = prepare(tiny_model, mode=mode)
    over_nixl(peer)
    key = HandoffKey(mode)
    grant = await peer.reserve(key, prepared)
    await peer.push(grant, prepared)
    answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
    assert answer.WhichOneof("result") == "adopted", answer
    decoded = await peer.decode(peer.decode_request(key, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    assert looked == ([] if announces else [key])
    assert behind(server) == ({} if announces else {"unforeseen": 1.0})
    await peer.transport.close()


@pytest.mark.parametrize("announced", ["identity", "shared", "head"])
async def test_a_prompt_that_was_pruned_otherwise_than_announced_is_taken_by_its_commit(
    tiny_model: Transformer,
    server: DecodeServer,
    peer: PrefillPeer,
    announced: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = looked_at_commit(server, monkeypatch)
    prepared, other = (prepare(tiny_model, mode=mode) for mode in ("layer", announced))
    peer.announces = True
    over_nixl(peer)
    key = HandoffKey(announced)
    grant = await peer.reserve(key, replace(prepared, manifest=other.manifest))
    await peer.push(grant, prepared)
    answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
    if announced == "identity":  # whole layers were granted, and others are promised
        assert answer.rejected.param == "manifest.prompt_tokens"
        await peer.transport.close()
        return
    assert answer.WhichOneof("result") == "adopted", answer
    decoded = await peer.decode(peer.decode_request(key, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    assert looked == [key]
    # By KV head more bytes were announced than granted: nothing was foreseen then.
    reason = {"shared": "layout", "head": "unforeseen"}[announced]
    assert behind(server) == {reason: 1.0}
    await peer.transport.close()


async def test_bytes_that_are_written_twice_are_looked_at_by_the_commit(
    tiny_model: Transformer,
    server: DecodeServer,
    peer: PrefillPeer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones were wrong, and taken; what counts is what lies there in the end."""
    looked = looked_at_commit(server, monkeypatch)
    prepared = prepare(tiny_model, mode="shared")
    peer.announces = True
    over_nixl(peer)
    key = HandoffKey("twice")
    grant = await peer.reserve(key, prepared)
    sender = await peer.open(grant)
    await sender.write(0, bytes(len(prepared.image)))
    arrival = server.core.worker.table._live[key].arrival
    assert arrival is not None
    # Their checksum is compared when they land: the next ones must not be there before.
    await until(lambda: arrival._taken is not None)
    await sender.write(0, prepared.image)
    await sender.seal()
    answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
    assert answer.WhichOneof("result") == "adopted", answer
    decoded = await peer.decode(peer.decode_request(key, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    assert looked == [key]
    assert behind(server) == {"unclear": 1.0}
    await peer.transport.close()


async def test_pages_of_a_handoff_that_was_given_up_half_way_serve_the_next_one(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    first, second = (prepare(tiny_model, mode="shared", seed=seed) for seed in (1, 2))
    peer.announces = True
    over_nixl(peer)
    gone = HandoffKey("gone")
    grant = await peer.reserve(gone, first)
    sender = await peer.open(grant)
    await sender.write(0, first.image[: len(first.image) // 2])
    await peer.abort(gone)
    await sender.abort()
    key = HandoffKey("next")
    grant = await peer.reserve(key, second)
    await peer.push(grant, second)
    manifest = replace(summed(second, peer), first_tokens=(), first_tokens_follow=True)
    answer = await peer.commit(key, grant, second, manifest=manifest)
    assert answer.WhichOneof("result") == "adopted", answer
    decoded = await peer.decode(peer.decode_request(key, second))
    assert decoded.tokens == direct_tokens(tiny_model, second, num_tokens=15)
    assert server.core.worker.table.idle
    await peer.transport.close()


async def test_a_slab_of_an_odd_length_is_taken(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    """Another version may ask for more than its segments take."""
    adoption = server.core.worker.intake._adoption
    assert isinstance(adoption, DeviceAdoption)
    adoption._kernel = True  # which sees the slab as items of the cache
    prepared = prepare(tiny_model, mode="shared")
    plan = replace(prepared.plan, total_bytes=prepared.plan.total_bytes + 1)
    over_nixl(peer)
    key = HandoffKey("odd")
    grant = await peer.reserve(key, replace(prepared, plan=plan))
    await peer.push(grant, prepared)
    answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
    assert answer.WhichOneof("result") == "adopted", answer
    decoded = await peer.decode(peer.decode_request(key, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    await peer.transport.close()


@pytest.mark.parametrize("mode", ["shared", "head"])
@pytest.mark.parametrize("announces", [False, True], ids=["at commit", "as it lands"])
async def test_every_byte_of_every_segment_is_summed(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, mode: str, announces: bool
) -> None:
    peer.announces = announces
    prepared = prepare(tiny_model, mode=mode)
    over_nixl(peer)
    for index, segment in enumerate(prepared.plan.segments):
        key = HandoffKey(f"{mode}-{index}")
        grant = await peer.reserve(key, prepared)
        where = segment.offset + (segment.length - 1) * (index % 2)
        await peer.push(grant, prepared, Faults(flip_byte=where))
        answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
        assert answer.rejected.param == "manifest.segments.sum64", segment
    assert server.core.worker.table.idle
    await peer.transport.close()


@pytest.mark.parametrize("by", ["nixl", "grpc"])
async def test_a_refused_handoff_waits_for_its_copies_before_its_pages_are_free(
    tiny_model: Transformer,
    server: DecodeServer,
    peer: PrefillPeer,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By CRC-32 too, which another stream copies to the host, past the scatter."""
    adoption = server.core.worker.intake._adoption
    assert isinstance(adoption, DeviceAdoption)
    pages_at_wait: list[int] = []

    class Stream:
        def synchronize(self) -> None:
            pools = server.core.memory.cache.pools.values()
            pages_at_wait.append(sum(pool.pages.num_used for pool in pools))

    monkeypatch.setattr(adoption, "_stream", Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    prepared = prepare(tiny_model, mode="shared")
    if by == "nixl":
        over_nixl(peer)
    key = HandoffKey(by)
    grant = await peer.reserve(key, prepared)
    await peer.push(grant, prepared, Faults(flip_byte=prepared.plan.segments[-1].offset))
    manifest = summed(prepared, peer) if by == "nixl" else peer.manifest(prepared)
    answer = await peer.commit(key, grant, prepared, manifest=manifest)
    what = "sum64" if by == "nixl" else "crc32"
    assert answer.rejected.param == f"manifest.segments.{what}"
    [held] = pages_at_wait
    assert held > 0
    assert server.core.worker.table.idle
    await peer.transport.close()


async def test_frames_of_the_host_land_on_the_device_too(
    tiny_model: Transformer, prepared: Prepared, peer: PrefillPeer
) -> None:
    """By gRPC, with the CRC-32 that goes with it."""
    key = HandoffKey("by-grpc")
    await peer.hand_over(key, prepared)
    decoded = await peer.decode(peer.decode_request(key, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_a_host_slab_computes_the_sums_that_a_manifest_names(
    tiny_model: Transformer, tiny_model_dir: Path, profile: Path, prepared: Prepared
) -> None:
    async with (
        decode_server(tiny_model_dir, profile) as server,
        prefill_peer(server.core.identity, server.address) as peer,
    ):
        for name, flip in (("right", None), ("wrong", prepared.plan.segments[-1].offset)):
            key = HandoffKey(name)
            grant = await peer.reserve(key, prepared)
            await peer.push(grant, prepared, Faults(flip_byte=flip))
            answer = await peer.commit(key, grant, prepared, manifest=summed(prepared, peer))
            if flip is None:
                assert answer.WhichOneof("result") == "adopted"
                decoded = await peer.decode(peer.decode_request(key, prepared))
                assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
            else:
                assert answer.rejected.param == "manifest.segments.sum64"
