"""A prompt that is cancelled in any phase, by any way, leaves nothing behind on either side."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from protos.tandem.v1 import common_pb2, prefill_pb2
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
)
from tests.support.waiting import until

WAYS = ("rpc", "stream", "deadline")
"""A Cancel call, a closed stream, or the end of the request's time."""

LONG_MS = 60_000
"""Time of a request that a test lets run out once the request is where the test wants it."""


@pytest.fixture(params=EACH_MEMORY)
async def worker(request: pytest.FixtureRequest, tiny_model_dir: Path) -> AsyncIterator[Worker]:
    async with prefill_worker(tiny_model_dir, **MEMORIES[request.param]) as running:
        yield running


@pytest.fixture
async def peer(worker: Worker) -> AsyncIterator[DecodePeer]:
    async with decode_peers(worker) as (only,):
        yield only


class Caller:
    """One Prefill call whose events are collected as they come."""

    def __init__(self, worker: Worker, request: prefill_pb2.PrefillRequest) -> None:
        self.worker = worker
        self.request = request
        self.events: list[Any] = []
        self.call = worker.stub.Prefill(request)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for response in self.call:
            kind = response.WhichOneof("event")
            assert kind is not None
            self.events.append(getattr(response, kind))

    async def end(self, way: str) -> None:
        """Ends the prompt in the given way and waits for the end of the stream."""
        if way == "rpc":
            handoff = self.request.handoff
            message = prefill_pb2.PrefillServiceCancelRequest(handoff=handoff)
            assert (await self.worker.stub.Cancel(message)).cancelled
        elif way == "stream":
            self.call.cancel()
        elif way == "deadline":
            self.worker.time_is_up(self.request)
        try:
            await self._task
        except asyncio.CancelledError:
            assert way == "stream"

    def check(self, way: str) -> None:
        """The caller heard of the end, unless it was the one who left."""
        if way == "stream":
            return
        assert kinds(self.events)[-1] == "ErrorDetail"
        assert kinds(self.events).count("ErrorDetail") == 1
        code = {"rpc": "cancelled", "deadline": "deadline_exceeded"}[way]
        assert self.events[-1].code == code


def call(worker: Worker, peer: DecodePeer, way: str, *, tokens: int = 120) -> Caller:
    deadline = LONG_MS if way == "deadline" else 0
    request = prompt_request(prompt_ids(tokens), [peer], deadline_ms=deadline)
    return Caller(worker, request)


async def check_nothing_left(worker: Worker, peer: DecodePeer) -> None:
    await worker.expect_idle()
    assert worker.engine.load().held_handoffs == 0
    await until(lambda: peer.holds_nothing, timeout_s=SOON_S)
    assert not peer.adopted
    peer.slab.check_integrity()


@pytest.mark.parametrize("way", WAYS)
async def test_queued(worker: Worker, peer: DecodePeer, way: str) -> None:
    worker.runner.gate.clear()
    first = Caller(worker, prompt_request(prompt_ids(50), [peer]))
    await worker.runner.wait_reached()
    second = call(worker, peer, way)
    await worker.wait_load(queued_requests=1)
    await second.end(way)
    second.check(way)
    await worker.wait_load(queued_requests=0, queued_tokens=0)
    assert len(peer.reserved) == 1, "a queued prompt holds nothing on the decode side"
    await first.end("rpc")
    assert worker.runner.runs == 1, "a queued prompt costs no compute"
    await check_nothing_left(worker, peer)


@pytest.mark.parametrize("way", WAYS)
async def test_asking_busy_workers(worker: Worker, peer: DecodePeer, way: str) -> None:
    peer.script.busy = -1
    caller = call(worker, peer, way)
    await worker.wait_load(running_requests=1)
    await asyncio.sleep(0.05)
    await caller.end(way)
    caller.check(way)
    assert worker.runner.runs == 0
    await check_nothing_left(worker, peer)


@pytest.mark.parametrize("way", WAYS)
async def test_computing(worker: Worker, peer: DecodePeer, way: str) -> None:
    worker.runner.gate.clear()
    caller = call(worker, peer, way)
    await worker.runner.wait_reached()
    assert len(peer.reserved) == 1
    await caller.end(way)
    caller.check(way)
    await check_nothing_left(worker, peer)
    assert [reason for _, reason in peer.aborted] == ["ended"]


@pytest.mark.parametrize("way", WAYS)
async def test_committing(worker: Worker, peer: DecodePeer, way: str) -> None:
    peer.script.writes_open.clear()
    caller = call(worker, peer, way)
    await until(lambda: "FirstTokens" in kinds(caller.events))
    await caller.end(way)
    caller.check(way)
    await worker.expect_idle()
    peer.script.writes_open.set()
    await check_nothing_left(worker, peer)


async def test_the_time_runs_out_by_itself(worker: Worker, peer: DecodePeer) -> None:
    worker.runner.gate.clear()
    caller = Caller(worker, prompt_request(prompt_ids(120), [peer], deadline_ms=50))
    await caller._task
    caller.check("deadline")
    await check_nothing_left(worker, peer)


async def test_the_next_prompt_goes_on(worker: Worker, peer: DecodePeer) -> None:
    worker.runner.gate.clear()
    first, second = call(worker, peer, "rpc"), call(worker, peer, "rpc")
    await worker.runner.wait_reached()
    await worker.wait_load(queued_requests=1)
    await first.end("rpc")
    worker.runner.gate.set()
    await second._task
    assert kinds(second.events)[-1] == "PrefillSealed"


async def test_cancel_after_the_end_drops_the_hold(worker: Worker, peer: DecodePeer) -> None:
    caller = call(worker, peer, "rpc")
    await caller._task
    assert worker.engine.load().held_handoffs == 1
    message = prefill_pb2.PrefillServiceCancelRequest(handoff=caller.request.handoff)
    assert (await worker.stub.Cancel(message)).cancelled
    assert not (await worker.stub.Cancel(message)).cancelled
    assert worker.engine.load().held_handoffs == 0


async def test_cancel_of_the_unknown_is_no_error(worker: Worker) -> None:
    key = common_pb2.HandoffKey(handoff_id="never", attempt=1)
    answer = await worker.stub.Cancel(prefill_pb2.PrefillServiceCancelRequest(handoff=key))
    assert not answer.cancelled


async def test_a_caller_may_leave_right_after_the_last_event(
    worker: Worker, peer: DecodePeer
) -> None:
    request = prompt_request(prompt_ids(60), [peer])
    stream = worker.stub.Prefill(request)
    async for response in stream:
        if response.HasField("sealed"):
            stream.cancel()
            break
    await worker.expect_idle()
    assert len(peer.adopted) == 1, "what was reported stays delivered"
    assert worker.engine.load().held_handoffs == 1


async def test_random_aborts_leave_nothing(worker: Worker, peer: DecodePeer) -> None:
    callers = [call(worker, peer, "rpc", tokens=40 + 7 * i) for i in range(16)]
    for i, caller in enumerate(callers):
        if i % 3 == 0:
            await asyncio.sleep(0.004)
            caller.call.cancel()
    results = await asyncio.gather(*(c._task for c in callers), return_exceptions=True)
    for i, result in enumerate(results):
        assert result is None or (i % 3 == 0 and isinstance(result, asyncio.CancelledError))
    await worker.expect_idle()
    for i, caller in enumerate(callers):
        if i % 3:
            assert kinds(caller.events)[-1] == "PrefillSealed"
    await until(lambda: peer.holds_nothing, timeout_s=SOON_S)
    assert worker.engine.load().active_bytes == 0


async def test_an_end_by_the_channel_is_an_end(worker: Worker, peer: DecodePeer) -> None:
    worker.runner.gate.clear()
    caller = call(worker, peer, "rpc")
    await worker.runner.wait_reached()
    await worker.channel.close()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError, grpc.aio.UsageError)):
        await caller._task
    await check_nothing_left(worker, peer)
