"""Decode workers that are full, die, corrupt or refuse; queues that overflow; bad requests."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from prefill_service.engine.sender import Delivery
from protos.tandem.v1 import common_pb2, prefill_pb2
from shared.errors import (
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    TandemError,
    UnavailableError,
)
from shared.rpc.status import error_from_rpc
from shared.types.handoff import HandoffKey
from shared.types.token_ids import ids_to_bytes
from tests.support.decode_peer import DecodePeer
from tests.support.prefill_worker import (
    EACH_MEMORY,
    MEMORIES,
    Worker,
    decode_peers,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
    target_of,
)


@pytest.fixture(params=EACH_MEMORY)
async def worker(request: pytest.FixtureRequest, tiny_model_dir: Path) -> AsyncIterator[Worker]:
    memory = MEMORIES[request.param]
    async with prefill_worker(
        tiny_model_dir, reserve_wait_s=0.4, rpc_timeout_s=3.0, **memory
    ) as running:
        yield running


@pytest.fixture
async def peers(worker: Worker) -> AsyncIterator[list[DecodePeer]]:
    async with decode_peers(worker, 2) as two:
        yield two


def adopters(peers: list[DecodePeer], request: prefill_pb2.PrefillRequest) -> list[str]:
    key = HandoffKey(request.handoff.handoff_id, request.handoff.attempt)
    return [peer.worker_id for peer in peers if key in peer.adopted]


async def refusal(worker: Worker, request: prefill_pb2.PrefillRequest) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.run(request)
    return error_from_rpc(caught.value)


async def test_a_busy_worker_is_passed_over(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.busy = -1
    request = prompt_request(prompt_ids(80), peers)
    events = await worker.run(request)
    assert events[-1].target.worker_id == "d1"
    assert adopters(peers, request) == ["d1"]
    assert not peers[0].aborted, "nothing was granted, so nothing is aborted"
    (first,) = [event for event in events if isinstance(event, prefill_pb2.FirstTokens)]
    assert first.target == events[-1].target, "who gave room is known at the first token"


async def test_all_busy_for_a_while(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.busy = peers[1].script.busy = 3
    events = await worker.run(prompt_request(prompt_ids(80), peers))
    assert kinds(events)[-1] == "PrefillSealed"


async def test_all_busy_for_too_long(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.busy = peers[1].script.busy = -1
    events = await worker.run(prompt_request(prompt_ids(80), peers))
    assert kinds(events) == ["PrefillAccepted", "ErrorDetail"]
    assert events[-1].code == "queue_full"
    assert events[-1].retry_after_ms > 0
    assert worker.runner.runs == 0
    await worker.expect_idle()


async def test_all_drain(worker: Worker, peers: list[DecodePeer]) -> None:
    for peer in peers:
        peer.script.busy, peer.script.busy_reason = -1, "draining"
    events = await worker.run(prompt_request(prompt_ids(80), peers))
    assert events[-1].code == "draining"


async def test_peer_dies_in_mid_stream(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.die_after_bytes = 1
    request = prompt_request(prompt_ids(300), peers)
    events = await worker.run(request)
    assert peers[0].dead.is_set()
    assert kinds(events).count("FirstTokens") == 1
    assert events[-1].target.worker_id == "d1"
    assert worker.runner.runs == 1, "the bytes were kept, nothing was computed again"
    await worker.expect_idle()
    assert peers[1].holds_nothing


async def test_nobody_is_there(worker: Worker, peers: list[DecodePeer]) -> None:
    for peer in peers:
        await peer.stop()
    events = await worker.run(prompt_request(prompt_ids(80), peers))
    assert kinds(events) == ["PrefillAccepted", "ErrorDetail"]
    assert events[-1].code == "no_decode_worker"
    await worker.expect_idle()


@pytest.mark.parametrize("fault", ["reject_commits", "corrupt"])
async def test_a_refused_commit_goes_to_the_next(
    worker: Worker, peers: list[DecodePeer], fault: str
) -> None:
    setattr(peers[0].script, fault, 1)
    request = prompt_request(prompt_ids(150), peers)
    events = await worker.run(request)
    assert events[-1].target.worker_id == "d1"
    assert adopters(peers, request) == ["d1"]
    assert worker.runner.runs == 1
    assert peers[1].adopted[HandoffKey(request.handoff.handoff_id, 1)].manifest.draws == 1
    await worker.expect_idle()
    assert peers[0].holds_nothing


async def test_every_delivery_fails_and_a_resend_saves_it(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    for peer in peers:
        peer.script.reject_commits = 1
    request = prompt_request(prompt_ids(150), peers)
    events = await worker.run(request)
    assert kinds(events)[-2:] == ["FirstTokens", "ErrorDetail"]
    assert events[-1].code == "kv_transfer_failed"
    await worker.expect_idle()
    assert worker.engine.load().held_handoffs == 1
    again = await worker.stub.Resend(
        prefill_pb2.ResendRequest(
            handoff=request.handoff, new_attempt=2, targets=[target_of(peers[0])]
        )
    )
    assert again.sealed.target.worker_id == "d0"
    manifest = peers[0].adopted[HandoffKey(request.handoff.handoff_id, 2)].manifest
    assert [t.token_id for t in manifest.first_tokens] == [t.token_id for t in events[-2].tokens]
    assert worker.runner.runs == 1


async def test_no_common_transport(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.transports = ("nixl",)
    events = await worker.run(prompt_request(prompt_ids(80), peers))
    assert events[-1].target.worker_id == "d1"
    assert peers[0].holds_nothing


async def test_a_peer_that_hangs_is_given_up(worker: Worker, peers: list[DecodePeer]) -> None:
    peers[0].script.writes_open.clear()
    request = prompt_request(prompt_ids(80), peers)
    events = await worker.run(request)
    assert events[-1].target.worker_id == "d1"
    peers[0].script.writes_open.set()


async def test_queue_overflow(tiny_model_dir: Path) -> None:
    async with (
        prefill_worker(tiny_model_dir, queue_tokens=100) as worker,
        decode_peers(worker) as peers,
    ):
        worker.runner.gate.clear()
        running = asyncio.create_task(worker.run(prompt_request(prompt_ids(60), peers)))
        await worker.runner.wait_reached()
        queued = asyncio.create_task(worker.run(prompt_request(prompt_ids(70), peers)))
        await worker.wait_load(queued_tokens=70)
        error = await refusal(worker, prompt_request(prompt_ids(60), peers))
        assert isinstance(error, OverloadedError)
        assert error.error_code == "queue_full"
        assert error.retry_after_s is not None
        worker.runner.gate.set()
        for events in await asyncio.gather(running, queued):
            assert kinds(events)[-1] == "PrefillSealed"
        await worker.expect_idle()


async def test_memory_for_kv_is_a_bound(tiny_model_dir: Path) -> None:
    async with (
        prefill_worker(tiny_model_dir, buffer_bytes=400_000) as worker,
        decode_peers(worker) as peers,
    ):
        full = {"mode": common_pb2.MODE_FULL}
        requests = [prompt_request(prompt_ids(200, seed=s), peers, options=full) for s in range(4)]
        for events in await asyncio.gather(*(worker.run(r) for r in requests)):
            assert kinds(events)[-1] == "PrefillSealed"
        too_long = await worker.run(prompt_request(prompt_ids(600), peers, options=full))
        assert (too_long[-1].code, too_long[-1].param) == ("invalid_value", "prompt")
        await worker.expect_idle()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"token_ids": []}, InvalidRequestError, "prompt"),
    ({"token_ids": [1, 512]}, InvalidRequestError, "prompt"),
    ({"token_ids": [1] * 1024}, ContextLengthError, "prompt"),
    ({"packed_token_ids": ids_to_bytes([1, 2])}, InvalidRequestError, "prompt"),
    (
        {"token_ids": [], "packed_token_ids": ids_to_bytes([1, 512])},
        InvalidRequestError,
        "prompt",
    ),
    ({"token_ids": [], "packed_token_ids": b"12345"}, InvalidRequestError, "prompt"),
    (
        {"token_ids": [], "packed_token_ids": ids_to_bytes([1] * 1024)},
        ContextLengthError,
        "prompt",
    ),
    ({"num_branches": 129}, InvalidRequestError, "n"),
    ({"targets": []}, InvalidRequestError, "targets"),
    ({"targets": [{"address": "nowhere"}]}, InvalidRequestError, "targets"),
    ({"handoff": {"handoff_id": "", "attempt": 1}}, InvalidRequestError, "handoff"),
    ({"handoff": {"handoff_id": "x", "attempt": 0}}, InvalidRequestError, "handoff"),
    ({"stop": {"max_tokens": 0}}, InvalidRequestError, "max_tokens"),
    ({"stop": {"max_tokens": 2, "token_ids": [999]}}, InvalidRequestError, "stop_token_ids"),
    ({"sampling": {"temperature": float("nan")}}, InvalidRequestError, "temperature"),
    ({"sampling": {"top_p": 2.0}}, InvalidRequestError, "top_p"),
    ({"sampling": {"logit_bias": [{"token_id": 600}]}}, InvalidRequestError, "logit_bias"),
    ({"options": {"keep_rate": float("inf")}}, InvalidRequestError, "tandem.keep_rate"),
    ({"options": {"mode": 9}}, InvalidRequestError, "tandem.mode"),
    ({"options": {"page_budget": 5}}, InvalidRequestError, "tandem.page_budget"),
    ({"options": {"recency_pages": 63}}, InvalidRequestError, "tandem.page_budget"),
    ({"options": {"recency_pages": 0}}, InvalidRequestError, "tandem.recency_pages"),
    ({"forced_first_tokens": [512]}, InvalidRequestError, "forced_first_tokens"),
    ({"forced_first_tokens": [5, 6]}, InvalidRequestError, "forced_first_tokens"),
    ({"earlier_tokens": 1}, InvalidRequestError, "earlier_tokens"),
    ({"earlier_tokens": 2, "forced_first_tokens": [5]}, InvalidRequestError, "earlier_tokens"),
    (
        {"earlier_tokens": 1, "forced_first_tokens": [5, 6], "num_branches": 2},
        InvalidRequestError,
        "earlier_tokens",
    ),
    (
        {"earlier_tokens": 1, "forced_first_tokens": [5], "stop": {"max_tokens": 1}},
        InvalidRequestError,
        "earlier_tokens",
    ),
]


@pytest.mark.parametrize(("fields", "kind", "param"), BAD)
async def test_bad_requests(
    worker: Worker,
    peers: list[DecodePeer],
    fields: dict[str, Any],
    kind: type[Exception],
    param: str,
) -> None:
    error = await refusal(worker, prompt_request(**({"token_ids": [1, 2]} | fields), peers=peers))
    assert isinstance(error, TandemError)
    assert type(error) is kind
    assert error.param == param
    await worker.expect_idle()
    events = await worker.run(prompt_request([1, 2], peers))
    assert kinds(events)[-1] == "PrefillSealed"


async def test_a_handoff_is_used_once(worker: Worker, peers: list[DecodePeer]) -> None:
    request = prompt_request(prompt_ids(20), peers)
    await worker.run(request)
    error = await refusal(worker, request)
    assert isinstance(error, InvalidRequestError)
    assert error.param == "handoff"


async def test_an_engine_defect_ends_one_prompt_only(
    worker: Worker, peers: list[DecodePeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_prompts: object, **_arguments: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(worker.runner, "run_pack", broken)
        events = await worker.run(prompt_request(prompt_ids(20), peers))
    assert events[-1].code == "internal_error"
    assert "planted" not in events[-1].message
    await worker.expect_idle()
    assert all(peer.holds_nothing for peer in peers)
    events = await worker.run(prompt_request(prompt_ids(20), peers))
    assert kinds(events)[-1] == "PrefillSealed"


@pytest.mark.parametrize("error", [RuntimeError("planted"), asyncio.CancelledError()])
async def test_whatever_happens_there_is_an_end(
    worker: Worker,
    peers: list[DecodePeer],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    async def broken(_self: Delivery, _slab: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Delivery, "push", broken)
        events = await worker.run(prompt_request(prompt_ids(20), peers))
    assert events[-1].code == "internal_error"
    await asyncio.gather(*worker.engine._tasks, return_exceptions=True)
    await worker.expect_idle()
    assert all(peer.holds_nothing for peer in peers)
    events = await worker.run(prompt_request(prompt_ids(20), peers))
    assert kinds(events)[-1] == "PrefillSealed"


async def test_drain(worker: Worker, peers: list[DecodePeer]) -> None:
    worker.runner.gate.clear()
    running = asyncio.create_task(worker.run(prompt_request(prompt_ids(60), peers)))
    await worker.runner.wait_reached()
    worker.app.begin_drain()
    await asyncio.sleep(0)
    error = await refusal(worker, prompt_request(prompt_ids(20), peers))
    assert isinstance(error, UnavailableError)
    assert error.error_code == "draining"
    worker.runner.gate.set()
    assert kinds(await running)[-1] == "PrefillSealed"
    await worker.app.drain()
    await worker.expect_idle()


async def test_a_drain_stops_what_is_left_at_its_cap(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    worker.runner.gate.clear()
    running = asyncio.create_task(worker.run(prompt_request(prompt_ids(60), peers)))
    await worker.runner.wait_reached()
    worker.app.begin_drain(0.05)
    events = await running
    assert events[-1].code == "unavailable"
    await worker.app.drain()
    await worker.expect_idle()
    assert all(peer.holds_nothing for peer in peers)


async def test_a_worker_that_granted_last_is_asked_beside_the_computation(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    await worker.run(prompt_request(prompt_ids(80), peers[:1]))
    worker.runner.gate.clear()
    peers[0].script.busy = 4
    running = asyncio.create_task(worker.run(prompt_request(prompt_ids(80), peers[:1])))
    await worker.runner.wait_reached()
    worker.runner.gate.set()
    events = await running
    assert kinds(events).index("FirstTokens") > kinds(events).index("PrefillStarted")
    assert kinds(events)[-1] == "PrefillSealed"
    assert worker.runner.runs == 2
    await worker.expect_idle()


async def test_without_room_no_first_token_is_told_and_the_next_prompt_waits(
    worker: Worker, peers: list[DecodePeer]
) -> None:
    await worker.run(prompt_request(prompt_ids(80), peers[:1]))
    peers[0].script.busy = -1
    refused = await worker.run(prompt_request(prompt_ids(80), peers[:1]))
    assert kinds(refused) == ["PrefillAccepted", "PrefillStarted", "ErrorDetail"]
    assert refused[-1].code == "queue_full"
    assert worker.runner.runs == 2, "computed beside the question, in vain"
    again = await worker.run(prompt_request(prompt_ids(80), peers[:1]))
    assert kinds(again) == ["PrefillAccepted", "ErrorDetail"]
    assert worker.runner.runs == 2, "asked first"
    await worker.expect_idle()
    assert peers[0].holds_nothing
