"""Commits that come while their push runs: adopted with the sums of its end, refused, given up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.app import DecodeServer
from protos.tandem.v1 import decode_pb2
from shared.model.transformer import Transformer
from shared.transport.base import Grant
from shared.types.handoff import HandoffKey, HandoffState
from shared.types.kv_manifest import KvManifest
from tests.support.decode_server import decode_server, direct_tokens
from tests.support.device_peer import over_nixl, summed
from tests.support.prefill_peer import PrefillPeer, Prepared, prefill_peer, prepare
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl

COMMIT_WAIT_S = 0.05
WAYS = {"transports": ("nixl", "grpc"), "kv_memory": "device", "commit_wait_s": COMMIT_WAIT_S}
KEY = HandoffKey("ahead")


@pytest.fixture
async def server(tiny_model_dir: Path, profile: Path) -> AsyncIterator[DecodeServer]:
    """Idle again in the end, with nothing held."""
    async with decode_server(tiny_model_dir, profile, **WAYS) as started:  # type: ignore[arg-type]
        yield started


@pytest.fixture
async def peer(server: DecodeServer) -> AsyncIterator[PrefillPeer]:
    async with prefill_peer(server.core.identity, server.address) as opened:
        opened.announces = True
        over_nixl(opened)
        yield opened
        await opened.transport.close()


def ahead(prepared: Prepared, peer: PrefillPeer) -> tuple[KvManifest, tuple[int, ...]]:
    """A manifest whose sums follow, and the sums."""
    manifest = summed(prepared, peer)
    sums = tuple(segment.sum64 for segment in manifest.segments)
    without = tuple(replace(segment, sum64=0) for segment in manifest.segments)
    return replace(manifest, segments=without, sums_follow=True), sums


async def push(
    peer: PrefillPeer, grant: Grant, prepared: Prepared, sums: Sequence[int] = ()
) -> None:
    sender = await peer.open(grant)
    try:
        await sender.write(0, bytes(prepared.image))
        await sender.seal(sums=sums)
    finally:
        await sender.abort()


async def committing(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared, manifest: KvManifest
) -> tuple[Grant, asyncio.Future[decode_pb2.CommitResponse]]:
    """A grant, and its commit, which the worker has heard and waits with."""
    grant = await peer.reserve(KEY, prepared)
    intake, heard = server.core.worker.intake, asyncio.Event()
    find = intake._table.find

    def found(key: HandoffKey) -> object:
        heard.set()
        return find(key)

    intake._table.find = found  # type: ignore[method-assign,assignment]
    commit = asyncio.ensure_future(peer.commit(KEY, grant, prepared, manifest=manifest))
    await asyncio.wait_for(heard.wait(), 10)
    intake._table.find = find  # type: ignore[method-assign]
    return grant, commit


@pytest.mark.parametrize("mode", ["identity", "head"])
async def test_it_waits_for_its_push_and_takes_the_sums_of_its_end(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, mode: str
) -> None:
    prepared = prepare(tiny_model, mode=mode)
    manifest, sums = ahead(prepared, peer)
    grant, commit = await committing(server, peer, prepared, manifest)
    await asyncio.sleep(2 * COMMIT_WAIT_S)  # its lease is the bound, not this
    assert not commit.done()
    await push(peer, grant, prepared, sums)
    assert (await commit).WhichOneof("result") == "adopted", await commit
    decoded = await peer.decode(peer.decode_request(KEY, prepared))
    assert decoded.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_one_that_comes_after_the_end_finds_its_sums_too(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="head")
    manifest, sums = ahead(prepared, peer)
    grant = await peer.reserve(KEY, prepared)
    await push(peer, grant, prepared, sums)
    answer = await peer.commit(KEY, grant, prepared, manifest=manifest)
    assert answer.WhichOneof("result") == "adopted", answer
    await peer.abort(KEY)
    await until(lambda: server.core.worker.table.idle)


@pytest.mark.parametrize("wrong", ["one", "fewer", "none"])
async def test_sums_that_do_not_hold_are_refused_and_nothing_stays(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, wrong: str
) -> None:
    prepared = prepare(tiny_model, mode="head")
    manifest, sums = ahead(prepared, peer)
    brought = {"one": (*sums[:-1], sums[-1] ^ 1), "fewer": sums[:-1], "none": ()}[wrong]
    grant, commit = await committing(server, peer, prepared, manifest)
    await push(peer, grant, prepared, brought)
    assert (await commit).rejected.param == "manifest.segments.sum64"
    await until(lambda: server.core.worker.table.idle)


async def test_promises_that_do_not_hold_are_refused(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="head")
    manifest, sums = ahead(prepared, peer)
    grant, commit = await committing(
        server, peer, prepared, replace(manifest, next_position=manifest.prompt_tokens + 1)
    )
    await push(peer, grant, prepared, sums)
    assert (await commit).rejected.param == "manifest.next_position"
    await until(lambda: server.core.worker.table.idle)


async def test_an_abort_ends_the_wait(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="head")
    _, commit = await committing(server, peer, prepared, ahead(prepared, peer)[0])
    await peer.abort(KEY)
    assert "is aborted" in (await commit).rejected.message
    await until(lambda: server.core.worker.table.idle)


async def test_a_lease_that_nobody_renews_ends_the_wait(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="head")
    _, commit = await committing(server, peer, prepared, ahead(prepared, peer)[0])
    granted = server.core.worker.table.find(KEY)
    granted.deadline = 0.0
    server.core.worker.table.reap()
    assert (await commit).WhichOneof("result") == "rejected"
    assert granted.state is HandoffState.EXPIRED


async def test_a_caller_that_leaves_while_it_waits_leaves_the_handoff_to_its_push(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="head")
    manifest, sums = ahead(prepared, peer)
    grant, commit = await committing(server, peer, prepared, manifest)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    assert not server.core.worker.intake.num_tasks
    await push(peer, grant, prepared, sums)
    answer = await peer.commit(KEY, grant, prepared, manifest=manifest)
    assert answer.WhichOneof("result") == "adopted", answer
    await peer.abort(KEY)
    await until(lambda: server.core.worker.table.idle)
