"""Isolation, drain, stalls and what operators see of a decode service."""

import asyncio

import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from decode_service.engine.engine import StepRunner
from decode_service.engine.sequence import Sequence
from protos.tandem.v1 import common_pb2, control_pb2, control_pb2_grpc
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.sampling import SampledToken, StopConditions
from tests.support.decode_server import (
    ServerPair,
    direct_tokens,
    holder,
)
from tests.support.prefill_peer import PrefillPeer, Prepared
from tests.support.waiting import until

KEY = HandoffKey("request", 1)


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
    tiny_model: Transformer, pair: ServerPair, prepared: Prepared
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


async def test_control_health_reflection_and_admin_pages(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair() as (server, peer), httpx.AsyncClient() as http:
        await peer.hand_over(KEY, prepared)
        await peer.decode(peer.decode_request(KEY, prepared))
        control = control_pb2_grpc.ControlServiceStub(peer.channel)
        info = await control.GetInfo(control_pb2.GetInfoRequest())
        assert (info.role, info.worker_id) == (control_pb2.ROLE_DECODE, server.worker_id)
        assert info.max_model_len == 1024
        assert info.attention_backend == "torch"
        assert any(text.startswith("triton: ") for text in info.rejected_backends)
        assert info.profile == "tiny-test (not calibrated)"
        load = await control.GetLoad(control_pb2.GetLoadRequest())
        assert load.free_pages == load.total_pages == 128
        assert load.free_slab_bytes == load.total_slab_bytes
        assert load.tokens_per_second > 0
        assert (load.kv_tokens, load.max_batch) == (64 * 16, server.config.max_batch)
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
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair() as (server, peer), httpx.AsyncClient() as http:
        await peer.hand_over(KEY, prepared, max_new_tokens=200)
        stop = StopConditions(max_tokens=200)
        reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
        await until(lambda: server.present_load().running == 1)
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


async def test_a_drain_has_a_cap(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await peer.hand_over(KEY, prepared)
        server.begin_drain(0.1)
        await asyncio.wait_for(server.finished.wait(), timeout=5)
        await peer.abort(KEY)


async def test_a_stall_makes_the_worker_unready_and_then_ends_it(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(stall_s=0.1, stall_exit_s=1.2) as (server, peer):
        hold, held = holder()
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


async def test_a_stop_tells_its_clients_why(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await peer.hand_over(KEY, prepared, max_new_tokens=900)
        stop = StopConditions(max_tokens=900)
        reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
        await until(lambda: server.present_load().running == 1)
        await server.stop()
        assert (await reading).end.error.code == "draining"
