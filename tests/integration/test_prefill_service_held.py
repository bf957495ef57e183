"""Delivered KV that is held for a resend: renewed, sent again, released, expired, bounded."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from protos.tandem.v1 import common_pb2, prefill_pb2
from shared.errors import HandoffError, InvalidRequestError
from shared.rpc.status import error_from_rpc
from shared.types.handoff import HandoffKey
from tests.support.decode_peer import DecodePeer
from tests.support.prefill_worker import (
    EACH_MEMORY,
    MEMORIES,
    SOON_S,
    Worker,
    decode_peers,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
    target_of,
)
from tests.support.waiting import until


@pytest.fixture(params=EACH_MEMORY)
async def worker(request: pytest.FixtureRequest, tiny_model_dir: Path) -> AsyncIterator[Worker]:
    async with prefill_worker(tiny_model_dir, **MEMORIES[request.param]) as running:
        yield running


@pytest.fixture
async def peers(worker: Worker) -> AsyncIterator[list[DecodePeer]]:
    async with decode_peers(worker, 2) as two:
        yield two


async def sealed(worker: Worker, peer: DecodePeer, *, tokens: int = 80) -> common_pb2.HandoffKey:
    request = prompt_request(prompt_ids(tokens), [peer])
    assert kinds(await worker.run(request))[-1] == "PrefillSealed"
    return request.handoff


def resend_request(
    key: common_pb2.HandoffKey, attempt: int, *peers: DecodePeer
) -> prefill_pb2.ResendRequest:
    targets = [target_of(peer) for peer in peers]
    return prefill_pb2.ResendRequest(handoff=key, new_attempt=attempt, targets=targets)


async def test_resend_gives_the_same_bytes_to_another_worker(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    key = await sealed(worker, peers[0])
    answer = await worker.stub.Resend(resend_request(key, 2, peers[1]))
    assert answer.sealed.target.worker_id == "d1"
    assert [p.phase for p in answer.sealed.phases] == ["transfer"]
    before = peers[0].adopted[HandoffKey(key.handoff_id, 1)]
    after = peers[1].adopted[HandoffKey(key.handoff_id, 2)]
    assert after.manifest.segments == before.manifest.segments
    # A first delivery from device memory may go before its token is drawn; a later one knows it.
    assert after.manifest.first_tokens
    drawn = () if before.manifest.first_tokens_follow else after.manifest.first_tokens
    assert before.manifest.first_tokens == drawn
    assert after.manifest.handoff == HandoffKey(key.handoff_id, 2)
    for segment in after.manifest.segments:
        piece = slice(segment.offset, segment.offset + segment.length)
        assert after.data[piece] == before.data[piece]
    assert worker.runner.runs == 1
    await worker.expect_idle()
    for attempt, released in ((2, True), (1, False)):
        named = common_pb2.HandoffKey(handoff_id=key.handoff_id, attempt=attempt)
        assert (
            await worker.stub.Release(prefill_pb2.ReleaseRequest(handoff=named))
        ).released is released
    assert worker.engine.load().held_bytes == 0


async def test_resend_while_the_engine_computes(worker: Worker, peers: list[DecodePeer]) -> None:
    key = await sealed(worker, peers[0])
    worker.runner.gate.clear()
    running = asyncio.create_task(worker.run(prompt_request(prompt_ids(90), peers)))
    await worker.runner.wait_reached()
    answer = await worker.stub.Resend(resend_request(key, 2, peers[1]), timeout=10)
    assert answer.sealed.target.worker_id == "d1"
    worker.runner.gate.set()
    assert kinds(await running)[-1] == "PrefillSealed"


async def test_resend_of_the_unknown(worker: Worker, peers: list[DecodePeer]) -> None:
    key = common_pb2.HandoffKey(handoff_id="never", attempt=1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.Resend(resend_request(key, 2, peers[0]))
    assert isinstance(error_from_rpc(caught.value), HandoffError)


async def test_resend_needs_a_new_attempt(worker: Worker, peers: list[DecodePeer]) -> None:
    key = await sealed(worker, peers[0])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.Resend(resend_request(key, 1, peers[1]))
    error = error_from_rpc(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert error.param == "new_attempt"


async def test_a_failed_resend_keeps_the_hold(worker: Worker, peers: list[DecodePeer]) -> None:
    key = await sealed(worker, peers[0])
    peers[1].script.reject_commits = 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.stub.Resend(resend_request(key, 2, peers[1]))
    assert error_from_rpc(caught.value).error_code == "kv_transfer_failed"
    await worker.expect_idle()
    answer = await worker.stub.Resend(resend_request(key, 3, peers[1]))
    assert answer.sealed.target.worker_id == "d1"
    assert peers[1].holds_nothing


async def test_a_resend_that_is_cancelled_leaves_nothing(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    key = await sealed(worker, peers[0])
    peers[1].script.writes_open.clear()
    call = worker.stub.Resend(resend_request(key, 2, peers[1]))
    await worker.wait_load(running_requests=1)
    await worker.stub.Release(prefill_pb2.ReleaseRequest(handoff=key))
    assert worker.engine.load().held_bytes == 0
    assert worker.engine.load().active_bytes > 0, "bytes that are being read stay counted"
    call.cancel()
    await worker.expect_idle()
    peers[1].script.writes_open.set()
    await until(lambda: peers[1].holds_nothing, timeout_s=SOON_S)


async def test_release_twice_is_fine(worker: Worker, peers: list[DecodePeer]) -> None:
    key = await sealed(worker, peers[0])
    message = prefill_pb2.ReleaseRequest(handoff=key)
    assert (await worker.stub.Release(message)).released
    assert not (await worker.stub.Release(message)).released


async def test_leases_end_unless_renewed(tiny_model_dir: Path) -> None:
    async with (
        prefill_worker(tiny_model_dir, sealed_lease_s=0.4) as worker,
        decode_peers(worker) as (peer,),
    ):
        kept, dropped = await sealed(worker, peer), await sealed(worker, peer)
        for _ in range(4):
            await asyncio.sleep(0.15)
            answer = await worker.stub.Renew(prefill_pb2.RenewRequest(handoffs=[kept]))
            assert not answer.unknown
        assert answer.lease_ms == 400
        both = await worker.stub.Renew(prefill_pb2.RenewRequest(handoffs=[kept, dropped]))
        assert list(both.unknown) == [dropped]
        await worker.wait_load(held_handoffs=0, held_bytes=0, expired_holds=2)


async def test_the_oldest_hold_makes_room(tiny_model_dir: Path) -> None:
    async with prefill_worker(tiny_model_dir) as probe:
        one = probe.plan(prompt_ids(80)).slab.total_bytes
    async with (
        prefill_worker(tiny_model_dir, sealed_bytes=2 * one) as worker,
        decode_peers(worker) as (peer,),
    ):
        keys = [await sealed(worker, peer) for _ in range(3)]
        answer = await worker.stub.Renew(prefill_pb2.RenewRequest(handoffs=keys))
        assert list(answer.unknown) == keys[:1]
        assert worker.engine.load().held_bytes == 2 * one
