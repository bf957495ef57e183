"""A prompt through a real prefill worker to a scripted decode peer over real gRPC."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protos.tandem.v1 import common_pb2
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.token_ids import ids_to_bytes
from tests.support.decode_peer import AdoptedKv, DecodePeer
from tests.support.prefill_worker import (
    PER_HEAD_PROFILE,
    Worker,
    decode_peers,
    expected_slab,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
)

WHOLE = ["PrefillAccepted", "PrefillStarted", "FirstTokens", "PrefillSealed"]


@pytest.fixture
async def worker(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[Worker]:
    profile = tmp_path / "head.toml"
    profile.write_text(PER_HEAD_PROFILE)
    async with prefill_worker(tiny_model_dir, profile=str(profile)) as running:
        yield running


@pytest.fixture
async def peer(worker: Worker) -> AsyncIterator[DecodePeer]:
    async with decode_peers(worker) as (only,):
        yield only


def check_bytes(worker: Worker, adopted: AdoptedKv, token_ids: list[int]) -> None:
    """What landed is what the runner gives, segment by segment."""
    plan = worker.plan(token_ids)
    expected = expected_slab(worker, token_ids, plan)
    for segment in adopted.manifest.segments:
        landed = adopted.data[segment.offset : segment.offset + segment.length]
        assert landed == expected[segment.offset], (segment.kind, segment.index)


async def test_normal_handoff(worker: Worker, peer: DecodePeer) -> None:
    token_ids = prompt_ids(200)
    request = prompt_request(token_ids, [peer])
    events = await worker.run(request)
    assert kinds(events) == WHOLE
    first, sealed = events[-2], events[-1]
    adopted = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)]
    check_bytes(worker, adopted, token_ids)
    manifest, plan = adopted.manifest, worker.plan(token_ids)
    assert plan.summary.pruned
    assert {layout.kind for layout in manifest.layouts} == set(PositionKind)
    assert manifest.layouts == plan.slab.layouts
    assert manifest.layer_layouts == plan.slab.layer_layouts
    assert manifest.next_position == manifest.prompt_tokens == 200
    packed = struct.pack("<200I", *token_ids)
    assert manifest.prompt_hash == hashlib.sha256(packed).hexdigest()
    assert manifest.pruning == plan.summary
    assert [t.token_id for t in manifest.first_tokens] == [t.token_id for t in first.tokens]
    assert manifest.draws == 1
    assert sealed.target.worker_id == "d0"
    assert sealed.kv_bytes == sum(s.length for s in manifest.segments) == peer.landed_bytes
    assert sealed.transport == "grpc"
    assert sealed.kept_tokens == plan.summary.kept_tokens == 50
    assert [p.phase for p in sealed.phases] == ["prefill", "select", "transfer"]
    assert sealed.lease_ms == 30_000
    await worker.expect_idle()
    assert peer.holds_nothing


@pytest.mark.parametrize(
    ("length", "mode", "reason"),
    [
        (31, common_pb2.MODE_AUTO, "short_prompt"),
        (100, common_pb2.MODE_FULL, "mode_full"),
        (100, common_pb2.MODE_BOTH, "profile"),
        (1, common_pb2.MODE_AUTO, "short_prompt"),
    ],
)
async def test_plans_reach_the_manifest(
    worker: Worker, peer: DecodePeer, length: int, mode: int, reason: str
) -> None:
    token_ids = prompt_ids(length)
    request = prompt_request(token_ids, [peer], options={"mode": mode})
    events = await worker.run(request)
    manifest = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)].manifest
    assert events[1].pruning.reason == manifest.pruning.reason == reason
    assert manifest.pruning.pruned == (reason == "profile")
    reserved = manifest.pruning.kept_tokens
    assert reserved == (25 if manifest.pruning.pruned else length)


async def test_first_token_does_not_wait_for_the_commit(worker: Worker, peer: DecodePeer) -> None:
    peer.script.writes_open.clear()
    call = worker.stub.Prefill(prompt_request(prompt_ids(100), [peer]))
    seen = []
    async for response in call:
        seen.append(response.WhichOneof("event"))
        if seen[-1] == "first_tokens":
            assert not peer.adopted
            peer.script.writes_open.set()
    assert seen[-1] == "sealed"


async def test_forced_first_token_is_passed_on(worker: Worker, peer: DecodePeer) -> None:
    request = prompt_request(prompt_ids(60), [peer], forced_first_tokens=[77])
    events = await worker.run(request)
    assert [t.token_id for t in events[-2].tokens] == [77]
    adopted = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)]
    assert [t.token_id for t in adopted.manifest.first_tokens] == [77]


async def test_every_branch_gets_a_first_token(worker: Worker, peer: DecodePeer) -> None:
    sampling = common_pb2.SamplingParams(temperature=1.5, seed=5)
    drawn = {}
    for branches in (1, 6):
        request = prompt_request(prompt_ids(60), [peer], sampling=sampling, num_branches=branches)
        events = await worker.run(request)
        drawn[branches] = [t.token_id for t in events[-2].tokens]
        adopted = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)]
        assert [t.token_id for t in adopted.manifest.first_tokens] == drawn[branches]
    assert len(drawn[6]) == 6
    assert len(set(drawn[6])) > 1
    assert drawn[6][:1] == drawn[1], "a branch's draw does not depend on those beside it"


async def test_prompt_ids_go_along_only_for_the_repetition_penalty(
    worker: Worker, peer: DecodePeer
) -> None:
    token_ids = prompt_ids(60)
    plain = prompt_request(token_ids, [peer])
    sampling = common_pb2.SamplingParams(repetition_penalty=1.3)
    penalised = prompt_request(
        [], [peer], sampling=sampling, packed_token_ids=ids_to_bytes(token_ids)
    )
    await worker.run(plain)
    await worker.run(penalised)
    assert peer.adopted[HandoffKey(plain.handoff.handoff_id, 1)].prompt_token_ids == ()
    sent = peer.adopted[HandoffKey(penalised.handoff.handoff_id, 1)].prompt_token_ids
    assert list(sent) == token_ids


async def test_eight_at_once_give_what_each_gives_alone(worker: Worker, peer: DecodePeer) -> None:
    prompts = [prompt_ids(40 + 30 * seed, seed=seed) for seed in range(8)]
    sampling = common_pb2.SamplingParams(temperature=0.9, seed=11, logprobs=2)
    alone: list[Any] = []
    together: list[Any] = []
    for target in (alone, together):
        requests = [prompt_request(ids, [peer], sampling=sampling) for ids in prompts]
        if target is alone:
            results = [await worker.run(request) for request in requests]
        else:
            results = await asyncio.gather(*(worker.run(request) for request in requests))
        for request, events in zip(requests, results, strict=True):
            assert kinds(events) == WHOLE
            adopted = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)]
            target.append((list(events[-2].tokens), adopted.data, adopted.manifest.segments))
    for before, after in zip(alone, together, strict=True):
        assert before[0] == after[0]
        for segment in before[2]:
            end = segment.offset + segment.length
            assert before[1][segment.offset : end] == after[1][segment.offset : end]
        assert before[2] == after[2]
    await worker.expect_idle()
    assert peer.holds_nothing
