"""Leases, endings, drain, stop conditions and what operators see of a decode service."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from decode_service.app import DecodeServer
from decode_service.engine.engine import StepRunner
from decode_service.engine.sequence import Sequence
from protos.tandem.v1 import common_pb2, control_pb2, control_pb2_grpc, decode_pb2
from shared.errors import HandoffError
from shared.model.transformer import Transformer
from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.handoff import HandoffKey
from shared.types.sampling import SampledToken, StopConditions
from shared.wire.identity import handoff_to_pb
from tests.support.decode_server import decode_server, direct_tokens, settle, write_profile
from tests.support.prefill_peer import PrefillPeer, Prepared, prefill_peer, prepare

KEY = HandoffKey("request", 1)


class Pair(Protocol):
    """Starts a server and its peer."""

    def __call__(
        self, **settings: object
    ) -> AbstractAsyncContextManager[tuple[DecodeServer, PrefillPeer]]: ...


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def pair(tiny_model_dir: Path, profile: Path) -> Pair:
    @asynccontextmanager
    async def start(**settings: object) -> AsyncIterator[tuple[DecodeServer, PrefillPeer]]:
        async with (
            decode_server(tiny_model_dir, profile, **settings) as server,
            prefill_peer(server.core.identity, server.address) as peer,
        ):
            yield server, peer

    return start


@pytest.fixture(scope="module")
def prepared(tiny_model: Transformer) -> Prepared:
    return prepare(tiny_model, mode="shared", tokens=60, kept=30)


async def abort(peer: PrefillPeer) -> bool:
    request = decode_pb2.AbortRequest(handoff=handoff_to_pb(KEY), reason="test")
    return (await peer.stub.Abort(request)).drained


async def cancel(peer: PrefillPeer) -> bool:
    request = decode_pb2.DecodeServiceCancelRequest(handoff=handoff_to_pb(KEY))
    return (await peer.stub.Cancel(request)).cancelled


# --- leases -----------------------------------------------------------------------------------


async def test_a_silent_grant_expires_without_any_request(pair: Pair, prepared: Prepared) -> None:
    async with pair(lease_s=0.2) as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        assert 0 < grant.lease_ms <= 200
        await settle(lambda: server.core.worker.table.idle)
        assert server.core.worker.table.counters.expired == 1
        with pytest.raises(HandoffError):
            await peer.push(grant, prepared)
        answer = await peer.commit(KEY, grant, prepared)
        assert "is expired" in answer.rejected.message


async def test_heartbeats_keep_a_slow_push_alive(
    tiny_model: Transformer, pair: Pair, prepared: Prepared
) -> None:
    async with pair(lease_s=0.6) as (_, peer):
        grant = await peer.reserve(KEY, prepared)
        sender = await peer.open(grant)
        half = len(prepared.image) // 2
        await sender.write(0, prepared.image[:half])
        await asyncio.sleep(1.5)
        await sender.write(half, prepared.image[half:])
        await sender.seal()
        answer = await peer.commit(KEY, grant, prepared)
        assert answer.WhichOneof("result") == "adopted"
        seen = await peer.decode(peer.decode_request(KEY, prepared))
        assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_adopted_kv_that_nobody_decodes_expires(pair: Pair, prepared: Prepared) -> None:
    async with pair(adopt_lease_s=0.2) as (server, peer):
        adopted = await peer.hand_over(KEY, prepared)
        assert 0 < adopted.lease_ms <= 200
        await settle(lambda: server.core.worker.table.idle)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.decode(peer.decode_request(KEY, prepared))
        assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_a_quarantine_ends_by_itself(pair: Pair, prepared: Prepared) -> None:
    async with pair(quarantine_s=0.3) as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        sender = await peer.open(grant)
        await sender.write(0, prepared.image[:64])
        assert not await abort(peer)
        assert server.core.slab.quarantined_bytes > 0
        await settle(lambda: server.core.worker.table.idle)
        await sender.abort()


# --- endings, twice ---------------------------------------------------------------------------


async def test_commit_twice_at_once_and_again(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        answers = await asyncio.gather(*(peer.commit(KEY, grant, prepared) for _ in range(3)))
        answers.append(await peer.commit(KEY, grant, prepared))
        assert [answer.WhichOneof("result") for answer in answers] == ["adopted"] * 4
        assert server.core.worker.table.counters.adopted == 1
        assert await abort(peer)
        assert await abort(peer)
        assert server.core.worker.table.counters.aborted == 1


async def test_cancel_and_abort_in_every_phase(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        assert not await cancel(peer), "unknown"
        assert await abort(peer)
        keys = [HandoffKey(f"phase{i}") for i in range(3)]
        await peer.reserve(keys[0], prepared)
        await peer.push(await peer.reserve(keys[1], prepared), prepared)
        await peer.hand_over(keys[2], prepared)
        for key in keys:
            request = decode_pb2.DecodeServiceCancelRequest(handoff=handoff_to_pb(key))
            assert (await peer.stub.Cancel(request)).cancelled
            assert not (await peer.stub.Cancel(request)).cancelled
        assert server.core.worker.table.idle


async def test_an_early_abort_forbids_the_late_reservation(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await abort(peer)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.reserve(KEY, prepared)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert server.core.worker.table.counters.late == 1


async def test_abort_during_the_copy_wins(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        hold, held = _holder()
        blocked = asyncio.create_task(server.core.worker.engine.between_steps(held))
        committing = asyncio.create_task(peer.commit(KEY, grant, prepared))
        await settle(lambda: server.core.worker.intake.num_tasks == 1)
        assert await abort(peer)
        assert not server.core.worker.table.idle, "the copy still uses slab and pages"
        hold.set()
        await blocked
        answer = await committing
        assert "aborted during its commit" in answer.rejected.message


async def test_a_committer_that_leaves_does_not_stop_the_copy(
    pair: Pair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        hold, held = _holder()
        blocked = asyncio.create_task(server.core.worker.engine.between_steps(held))
        committing = asyncio.create_task(peer.commit(KEY, grant, prepared))
        await settle(lambda: server.core.worker.intake.num_tasks == 1)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        hold.set()
        await blocked
        await settle(lambda: server.core.worker.intake.num_tasks == 0)
        answer = await peer.commit(KEY, grant, prepared)
        assert answer.WhichOneof("result") == "adopted"
        await abort(peer)


def _holder() -> tuple[threading.Event, Callable[[], bool]]:
    event = threading.Event()
    return event, lambda: event.wait(timeout=10)


async def test_a_client_that_leaves_while_it_waits_ends_the_handoff(
    pair: Pair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        await peer.reserve(KEY, prepared)
        call = peer.stub.Decode(peer.decode_request(KEY, prepared))
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await settle(lambda: server.core.worker.table.idle)


# --- stop conditions --------------------------------------------------------------------------


async def test_a_first_token_that_already_ends_the_answer(pair: Pair, prepared: Prepared) -> None:
    cases = {
        "limit": (StopConditions(max_tokens=1), common_pb2.FINISH_REASON_LENGTH, ""),
        "id": (
            StopConditions(max_tokens=9, token_ids=(prepared.first_token,)),
            common_pb2.FINISH_REASON_STOP,
            str(prepared.first_token),
        ),
    }
    async with pair() as (server, peer):
        for name, (stop, reason, match) in cases.items():
            key = HandoffKey(name)
            await peer.hand_over(key, prepared)
            seen = await peer.decode(peer.decode_request(key, prepared, stop=stop))
            assert (seen.tokens, seen.end.generated_tokens) == ([], 0)
            assert (seen.end.reason, seen.end.stop_match) == (reason, match)
        assert server.core.worker.table.counters.released == 2


async def test_stop_ids_min_tokens_and_stop_strings_end_at_the_exact_token(
    tiny_model: Transformer, tiny_model_dir: Path, pair: Pair, prepared: Prepared
) -> None:
    plain = direct_tokens(tiny_model, prepared, num_tokens=15)
    tokenizer = Tokenizer.from_folder(tiny_model_dir)
    stop_id = plain[4]
    first_at = plain.index(stop_id)
    async with pair() as (_, peer):

        async def run(name: str, **stop: object) -> tuple[list[int], decode_pb2.DecodeFinished]:
            key = HandoffKey(name)
            await peer.hand_over(key, prepared)
            conditions = StopConditions(**({"max_tokens": 16} | stop))  # type: ignore[arg-type]
            seen = await peer.decode(peer.decode_request(key, prepared, stop=conditions))
            return seen.tokens, seen.end

        tokens, end = await run("id", token_ids=(stop_id,))
        assert tokens == plain[: first_at + 1]
        assert (end.reason, end.stop_match) == (common_pb2.FINISH_REASON_STOP, str(stop_id))

        tokens, end = await run("min", token_ids=(stop_id,), min_tokens=first_at + 4)
        assert tokens[:first_at] == plain[:first_at]
        assert stop_id not in tokens[: first_at + 2], "banned until min_tokens"
        assert len(tokens) >= first_at + 3

        word, end_at = _a_word_of(tokenizer, [prepared.first_token, *plain])
        tokens, end = await run("string", strings=("not in there", word))
        assert (end.reason, end.stop_match) == (common_pb2.FINISH_REASON_STOP, word)
        assert tokens == plain[:end_at]


def _a_word_of(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, int]:
    """Two characters of a text, and the token with which they are complete."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    texts = list(itertools.accumulate(detokenizer.push([i]) for i in ids))
    whole = texts[-1]
    words = [whole[i : i + 2] for i in range(len(whole) // 2, len(whole) - 1)]
    word = next(word for word in words if "\ufffd" not in word)
    return word, next(i for i, text in enumerate(texts) if word in text)


async def test_the_context_end_is_a_length_end(
    tiny_model: Transformer, pair: Pair, prepared: Prepared
) -> None:
    async with pair(max_model_len=64) as (_, peer):
        await peer.hand_over(KEY, prepared, max_new_tokens=500)
        stop = StopConditions(max_tokens=500)
        seen = await peer.decode(peer.decode_request(KEY, prepared, stop=stop))
        assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=3)
        assert seen.end.reason == common_pb2.FINISH_REASON_LENGTH


# --- isolation --------------------------------------------------------------------------------


class FailingRunner:
    """Raises for one handoff after some steps, alone or in a batch."""

    def __init__(self, inner: StepRunner, key: HandoffKey) -> None:
        self._inner = inner
        self._key = key

    def step(self, rows: list[Sequence]) -> list[SampledToken]:
        if any(row.key == self._key and row.steps >= 3 for row in rows):
            raise RuntimeError("planned failure")
        return self._inner.step(rows)


async def test_a_failing_row_ends_with_an_error_and_the_others_go_on(
    tiny_model: Transformer, pair: Pair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        engine = server.core.worker.engine
        engine._runner = FailingRunner(engine._runner, KEY)
        good = HandoffKey("good")
        await peer.hand_over(KEY, prepared)
        await peer.hand_over(good, prepared)
        broken, healthy = await asyncio.gather(
            peer.decode(peer.decode_request(KEY, prepared)),
            peer.decode(peer.decode_request(good, prepared)),
        )
        assert broken.end.reason == common_pb2.FINISH_REASON_ERROR
        assert broken.end.error.code == "internal_error"
        assert len(broken.tokens) == 3
        assert healthy.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
        assert engine.healthy


# --- what operators see -----------------------------------------------------------------------


async def test_control_health_reflection_and_admin_pages(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer), httpx.AsyncClient() as http:
        await peer.hand_over(KEY, prepared)
        await peer.decode(peer.decode_request(KEY, prepared))
        control = control_pb2_grpc.ControlServiceStub(peer.channel)
        info = await control.GetInfo(control_pb2.GetInfoRequest())
        assert (info.role, info.worker_id) == (control_pb2.ROLE_DECODE, server.worker_id)
        assert info.max_model_len == 1024
        assert info.attention_backend == "torch"
        assert any(text.startswith("triton: ") for text in info.rejected_backends)
        load = await control.GetLoad(control_pb2.GetLoadRequest())
        assert load.free_pages == load.total_pages == 128
        assert load.free_slab_bytes == load.total_slab_bytes
        assert load.tokens_per_second > 0
        health = health_pb2_grpc.HealthStub(peer.channel)
        for name in ("", "liveness", "readiness", "tandem.v1.DecodeService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
        assert "tandem.v1.TransferService" in await _listed_services(peer)
        metrics = (await http.get(f"http://{server.admin_address}/metrics")).text
        assert "tandem_step_seconds_count 15.0" in metrics
        assert "tandem_kv_pages_total 128.0" in metrics
        ready = await http.get(f"http://{server.admin_address}/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert (await http.get(f"http://{server.admin_address}/health/live")).status_code == 200


async def _listed_services(peer: PrefillPeer) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(peer.channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    async for answer in call:
        return {service.name for service in answer.list_services_response.service}
    return set()


async def test_drain_finishes_what_runs_and_takes_nothing_new(
    pair: Pair, prepared: Prepared
) -> None:
    async with pair() as (server, peer), httpx.AsyncClient() as http:
        await peer.hand_over(KEY, prepared, max_new_tokens=200)
        stop = StopConditions(max_tokens=200)
        reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
        await settle(lambda: server.present_load().running == 1)
        control = control_pb2_grpc.ControlServiceStub(peer.channel)
        assert (await control.Drain(control_pb2.DrainRequest())).running_requests == 1
        request = peer.reserve_request(HandoffKey("new"), prepared)
        answer = await peer.stub.Reserve(request)
        assert answer.busy.reason == "draining"
        ready = await http.get(f"http://{server.admin_address}/health/ready")
        assert (ready.status_code, ready.json()["phase"]) == (503, "draining")
        assert (await control.GetLoad(control_pb2.GetLoadRequest())).draining
        assert not server.finished.is_set()
        assert len((await reading).tokens) == 199
        await asyncio.wait_for(server.finished.wait(), timeout=5)


async def test_a_drain_has_a_cap(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await peer.hand_over(KEY, prepared)
        server.begin_drain(0.1)
        await asyncio.wait_for(server.finished.wait(), timeout=5)
        await abort(peer)


async def test_a_stall_makes_the_worker_unready_and_then_ends_it(
    pair: Pair, prepared: Prepared
) -> None:
    async with pair(stall_s=0.1, stall_exit_s=1.2) as (server, peer):
        hold, held = _holder()
        blocked = asyncio.create_task(server.core.worker.engine.between_steps(held))
        health = health_pb2_grpc.HealthStub(peer.channel)

        async def status(name: str) -> int:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            return int(answer.status)

        for _ in range(200):
            if await status("readiness") == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
            await asyncio.sleep(0.02)
        assert await status("liveness") == health_pb2.HealthCheckResponse.NOT_SERVING
        await asyncio.wait_for(server.finished.wait(), timeout=5)
        assert server.exit_code == 1
        hold.set()
        await blocked


async def test_a_stop_tells_its_clients_why(pair: Pair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await peer.hand_over(KEY, prepared, max_new_tokens=900)
        stop = StopConditions(max_tokens=900)
        reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
        await settle(lambda: server.present_load().running == 1)
        await server.stop()
        assert (await reading).end.error.code == "draining"
