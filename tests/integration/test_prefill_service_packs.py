"""Prompts computed together are delivered apart, and what befalls one is not felt by the others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefill_service.engine import compute
from prefill_service.engine.host_slab import HostSlab
from prefill_service.engine.slab_writer import DeviceSlabWriter
from protos.tandem.v1 import common_pb2, prefill_pb2
from shared.kv.checksum import crc32
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import SegmentKind
from shared.types.options import Mode
from tests.support.decode_peer import DecodePeer
from tests.support.prefill_worker import (
    PER_HEAD_PROFILE,
    SOON_S,
    Worker,
    decode_peers,
    expected_slab,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
)
from tests.support.waiting import until

FULL = {"mode": common_pb2.MODE_FULL}
LENGTHS = (60, 1, 33, 90, 47)
"""Prompts that wait together: pruned and full in turn, one of a single token."""


@pytest.fixture
async def worker(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[Worker]:
    profile = tmp_path / "heads.toml"
    profile.write_text(PER_HEAD_PROFILE, encoding="utf-8")
    settings: dict[str, Any] = {"pack_tokens": 300, "pack_prompts": 8, "profile": str(profile)}
    async with prefill_worker(tiny_model_dir, **settings) as running:
        yield running


@pytest.fixture
async def peers(worker: Worker) -> AsyncIterator[list[DecodePeer]]:
    async with decode_peers(worker, count=2) as both:
        yield both


Run = asyncio.Task[list[Any]]


class Crowd:
    """One prompt that runs, and others that are ready meanwhile."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.runs: list[Run] = []

    async def first(self, peer: DecodePeer) -> None:
        """A prompt whose pass stands still until the gate opens."""
        self.worker.runner.gate.clear()
        self._first = prompt_request(prompt_ids(20, seed=99), [peer])
        self.runs.append(self.run(self._first))
        await self.worker.runner.wait_reached()

    async def stop_first(self) -> None:
        """Its pass ends, and the next one stands still."""
        cancel = prefill_pb2.PrefillServiceCancelRequest(handoff=self._first.handoff)
        assert (await self.worker.stub.Cancel(cancel)).cancelled

    def run(self, request: prefill_pb2.PrefillRequest) -> Run:
        return asyncio.create_task(self.worker.run(request))

    async def ready(self, count: int) -> None:
        """Waits until so many prompts wait for the next pass."""
        await until(lambda: len(self.worker.engine._batcher._ready) == count, timeout_s=SOON_S)


def requests_of(peer: DecodePeer) -> list[prefill_pb2.PrefillRequest]:
    return [
        prompt_request(prompt_ids(length, seed=length), [peer], options=FULL if index % 2 else {})
        for index, length in enumerate(LENGTHS)
    ]


def threaded_writer(slab: HostSlab, **how: Any) -> DeviceSlabWriter:
    """As on a CUDA device: each prompt's KV is copied by a thread of its own."""
    return DeviceSlabWriter(slab, **how)


@pytest.mark.parametrize("threads", [False, True], ids=["copied at once", "copied in threads"])
async def test_each_gets_what_it_gets_alone(
    worker: Worker, peers: list[DecodePeer], threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads:
        monkeypatch.setattr(compute, "slab_writer", threaded_writer)
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    requests = requests_of(peers[0])
    runs = [crowd.run(request) for request in requests]
    await crowd.ready(len(requests))
    worker.runner.gate.set()
    for request, run in zip(requests, runs, strict=True):
        events = await run
        assert kinds(events) == [
            "PrefillAccepted",
            "PrefillStarted",
            "FirstTokens",
            "PrefillSealed",
        ]
        progress = [e.done_tokens for e in events if type(e).__name__ == "PrefillProgress"]
        assert progress == sorted(progress)
        assert progress[-1] == len(request.token_ids)
        _check_adopted(worker, peers[0], request)
    assert worker.runner.packs == [1, len(LENGTHS)]
    again = [await worker.run(request) for request in requests_of(peers[1])]
    for packed, alone in zip([await run for run in runs], again, strict=True):
        assert _first(packed) == _first(alone)
    assert worker.runner.packs == [1, len(LENGTHS), *[1] * len(LENGTHS)]
    await worker.expect_idle()


def _first(events: list[Any]) -> list[int]:
    (found,) = [e for e in events if type(e).__name__ == "FirstTokens"]
    return [token.token_id for token in found.tokens]


def _check_adopted(worker: Worker, peer: DecodePeer, request: prefill_pb2.PrefillRequest) -> None:
    """The peer has the bytes of a pass alone: positions the same, numbers within rounding."""
    adopted = peer.adopted[HandoffKey(request.handoff.handoff_id, 1)]
    full = request.options.mode == common_pb2.MODE_FULL
    plan = worker.plan(request.token_ids, mode=Mode.FULL if full else Mode.AUTO)
    wanted = expected_slab(worker, request.token_ids, plan)
    assert len(adopted.manifest.segments) == len(wanted)
    for segment in adopted.manifest.segments:
        data = adopted.data[segment.offset : segment.offset + segment.length]
        assert crc32(memoryview(data)) == segment.crc32
        if segment.kind is SegmentKind.POSITIONS:
            assert data == wanted[segment.offset]
        else:
            got, other = (np.frombuffer(x, "<f4") for x in (data, wanted[segment.offset]))
            np.testing.assert_allclose(got, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("moment", ["ready", "in the pass"])
async def test_one_is_cancelled(worker: Worker, peers: list[DecodePeer], moment: str) -> None:
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    requests = requests_of(peers[0])
    runs = [crowd.run(request) for request in requests]
    await crowd.ready(len(requests))
    if moment == "in the pass":
        worker.runner.reached.clear()
        await crowd.stop_first()
        await worker.runner.wait_reached()
    cancel = prefill_pb2.PrefillServiceCancelRequest(handoff=requests[2].handoff)
    assert (await worker.stub.Cancel(cancel)).cancelled
    if moment == "ready":
        events = await runs[2]
        assert events[-1].code == "cancelled"
    worker.runner.gate.set()
    ends = [(await run)[-1] for run in runs]
    assert [type(end).__name__ for end in ends].count("PrefillSealed") == len(LENGTHS) - 1
    assert ends[2].code == "cancelled"
    assert worker.runner.packs == [1, len(LENGTHS) - (moment == "ready")]
    await crowd.runs[0]
    await worker.expect_idle()
    await until(lambda: peers[0].holds_nothing, timeout_s=SOON_S)


async def test_dead_and_busy_decode_workers_hold_up_nobody(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    peers[1].script.busy = -1
    waits = crowd.run(prompt_request(prompt_ids(30), [peers[1]]))
    async with decode_peers(worker) as (gone,):
        to_nobody = prompt_request(prompt_ids(31), [gone])
    dead = crowd.run(to_nobody)
    others = [crowd.run(request) for request in requests_of(peers[0])[:3]]
    await crowd.ready(3)
    assert (await dead)[-1].code == "no_decode_worker"
    worker.runner.gate.set()
    for run in others:
        assert kinds(await run)[-1] == "PrefillSealed"
    assert worker.runner.packs == [1, 3]
    peers[1].script.busy = 0
    assert kinds(await waits)[-1] == "PrefillSealed"
    assert worker.runner.packs == [1, 3, 1]


async def test_a_peer_that_dies_while_its_kv_arrives(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    lost = prompt_request(prompt_ids(90, seed=7), [peers[1]], options=FULL)
    peers[1].script.die_after_bytes = 1
    runs = [crowd.run(request) for request in [lost, *requests_of(peers[0])[:3]]]
    await crowd.ready(4)
    worker.runner.gate.set()
    assert (await runs[0])[-1].code == "kv_transfer_failed"
    for run in runs[1:]:
        assert kinds(await run)[-1] == "PrefillSealed"
    assert worker.runner.packs == [1, 4]
    await worker.expect_idle()


async def test_metrics_tell_prompts_of_a_pass(worker: Worker, peers: list[DecodePeer]) -> None:
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    runs = [crowd.run(request) for request in requests_of(peers[0])]
    await crowd.ready(len(LENGTHS))
    worker.runner.gate.set()
    await asyncio.gather(*runs, *crowd.runs)

    def value(name: str) -> float | None:
        return worker.app.registry.get_sample_value(f"tandem_{name}")

    assert value("batch_prompts_count") == value("batch_tokens_count") == 2
    assert value("batch_prompts_sum") == 1 + len(LENGTHS)
    assert value("batch_tokens_sum") == 20 + sum(LENGTHS)
    assert value("claa_tokens_in_total") == 20 + sum(LENGTHS)


async def test_a_trace_is_each_prompts_own(worker: Worker, peers: list[DecodePeer]) -> None:
    crowd = Crowd(worker)
    await crowd.first(peers[0])
    requests = [
        prompt_request(prompt_ids(n, seed=n), [peers[0]], options={"trace": n != 50})
        for n in (50, 64)
    ]
    runs = [crowd.run(request) for request in requests]
    await crowd.ready(2)
    worker.runner.gate.set()
    without, with_trace = [(await run)[-1] for run in runs]
    assert not without.HasField("trace")
    assert with_trace.HasField("trace")
