"""Quotas over REST and gRPC: headers, refusals, one count for all gateways, Redis lost midway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.tandem.v1 import inference_pb2, inference_pb2_grpc
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from tests.support.gateway_rig import Rig, running_rig, until
from tests.support.redis_server import RedisServer
from tests.support.simulated_workers import SimulatedWorker

LIMIT_HEADERS = {
    f"x-ratelimit-{kind}-{what}"
    for kind in ("limit", "remaining", "reset")
    for what in ("requests", "tokens")
}


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(
        folder, key_requests_per_minute=3, key_tokens_per_minute=1_000
    ) as started:
        yield started


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


async def test_headers_count_down_and_the_limit_is_429(rig: Rig) -> None:
    left = []
    for stream in (False, True, False):
        response = await rig.complete(prompt=[1] * 10, max_tokens=2, stream=stream)
        assert response.status_code == 200
        assert response.headers.keys() >= LIMIT_HEADERS
        left.append(int(response.headers["x-ratelimit-remaining-requests"]))
    assert left == [2, 1, 0]
    refused = await rig.complete(prompt=[1] * 10)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    metrics = (await rig.http.get("/metrics")).text
    assert 'tandem_rejected_total{reason="rate_limit_exceeded"} 1.0' in metrics
    assert len(rig.simulation.sampling) == 3


async def test_prompt_and_answer_tokens_count(rig: Rig) -> None:
    first = await rig.complete(prompt=[1] * 100, max_tokens=5, ignore_eos=True)
    assert first.headers["x-ratelimit-remaining-tokens"] == "900"

    async def answer_counted() -> bool:
        response = await rig.http.get("/health/ready")
        local = rig.gateway._quotas._store
        return response.status_code == 200 and sum(_tokens(local)) == 105

    await until(answer_counted)
    second = await rig.complete(prompt=[1] * 10, max_tokens=1)
    assert second.headers["x-ratelimit-remaining-tokens"] == "885"


def _tokens(store: object) -> Iterator[int]:
    for counters in store._counters.values():  # type: ignore[attr-defined]
        yield from counters.tokens.values()


async def test_several_prompts_are_one_request(rig: Rig) -> None:
    response = await rig.complete(prompt=[[1] * 10, [2] * 20], max_tokens=1)
    assert response.status_code == 200
    assert response.headers["x-ratelimit-remaining-requests"] == "2"


async def test_a_prompt_above_the_limit_is_not_tried_again_by_official_clients(
    folder: Path,
) -> None:
    async with running_rig(folder, key_tokens_per_minute=50) as rig:
        response = await rig.complete(prompt=[1] * 51)
        assert response.status_code == 429
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers


async def test_the_official_client_raises_its_rate_limit_error(rig: Rig) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as client:
        for _ in range(3):
            raw = await client.completions.with_raw_response.create(
                model="simulated", prompt="hi", max_tokens=1
            )
            assert raw.headers["x-ratelimit-limit-requests"] == "3"
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model="simulated", prompt="hi")
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.response.headers["x-ratelimit-reset-requests"]


async def test_without_limits_there_are_no_headers(folder: Path) -> None:
    async with running_rig(folder) as rig:
        response = await rig.complete()
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]


async def test_grpc_callers_have_the_same_limits(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(text="hi")
        for _ in range(3):
            assert [event async for event in stub.Generate(request)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request):
                pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert any(detail.Unpack(retry) for detail in status.details)
    assert info.reason == "rate_limit_exceeded"
    assert 0 < retry.retry_delay.seconds <= 61


async def test_a_callers_deadline_goes_along_to_the_worker(folder: Path) -> None:
    async with running_rig(folder, request_timeout_s=600.0) as rig:
        async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.GenerateRequest(text="hi")
            assert [event async for event in stub.Generate(request, timeout=60.0)]
            assert [event async for event in stub.Generate(request)]
        with_deadline, without = rig.simulation.deadlines_ms
        assert 0 < with_deadline <= 60_000 < without <= 600_000


@asynccontextmanager
async def two_gateways(folder: Path, url: str) -> AsyncIterator[tuple[Rig, Rig]]:
    """Two gateways that share a Redis, for workers and quotas, and a pair."""
    async with (
        running_rig(folder, key_requests_per_minute=6, redis_url=url) as one,
        running_rig(
            folder, prefills=0, decodes=0, key_requests_per_minute=6, redis_url=url
        ) as other,
        contextlib.AsyncExitStack() as stack,
    ):
        for worker in (*one.prefills, *one.decodes):
            discovery = RedisDiscovery(RedisSettings(url=url))
            stack.push_async_callback(discovery.close)
            await discovery.publish(card_of(worker))

        async def ready() -> bool:
            answers = [await rig.http.get("/health/ready") for rig in (one, other)]
            return all(answer.status_code == 200 for answer in answers)

        await until(ready)
        yield one, other


def card_of(worker: SimulatedWorker) -> WorkerCard:
    return WorkerCard(
        worker_id=worker.worker_id,
        role=worker.role,
        address=worker.address,
        incarnation="1",
        model=worker.identity,
        max_model_len=worker.simulation.max_model_len,
    )


async def health(rig: Rig) -> str:
    return str((await rig.http.get("/health/ready")).json()["quotas"])


async def test_gateways_share_the_count_and_each_goes_on_when_redis_is_lost(
    folder: Path, server: RedisServer
) -> None:
    async with two_gateways(folder, server.url) as (one, other):
        assert await health(one) == "shared"
        for rig in (one, other, one):
            assert (await rig.complete(max_tokens=1)).status_code == 200
        response = await other.complete(max_tokens=1)
        assert response.headers["x-ratelimit-remaining-requests"] == "2"

        server.stop()
        answers = await asyncio.gather(*(one.complete(max_tokens=1) for _ in range(8)))
        # Two of the minute's requests went through this gateway: it remembers those.
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 4
        assert await health(one) == "degraded"
        metrics = (await one.http.get("/metrics")).text
        assert "tandem_quota_fallbacks_total 8.0" in metrics

        server.start()

        async def shared_again() -> bool:
            return await health(one) == "shared"

        await until(shared_again)
        response = await one.complete(max_tokens=1)
        assert response.headers["x-ratelimit-remaining-requests"] == "5"
