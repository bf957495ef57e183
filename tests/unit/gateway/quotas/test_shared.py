"""Quotas in a real Redis: shared, atomic, and going on without it."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import redis.asyncio

from gateway.quotas.base import NOTHING, Cost, Limits, Verdict
from gateway.quotas.local import LocalQuotas
from gateway.quotas.shared import SharedQuotas, SharedSettings
from shared.errors import ConfigError
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

LIMITS = Limits(requests=10, tokens=1_000)
ONE = Cost(requests=1, tokens=50)


class Fallbacks:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@asynccontextmanager
async def store_of(
    url: str, namespace: str = "", *, fallbacks: Fallbacks | None = None
) -> AsyncIterator[SharedQuotas]:
    settings = SharedSettings(
        url=url, namespace=namespace or uuid4().hex, timeout_s=20.0, probe_s=0.05
    )
    store = SharedQuotas(settings, on_fallback=fallbacks or Fallbacks())
    await store.start()
    try:
        yield store
    finally:
        await store.close()
        await store.close()


def used(verdict: Verdict) -> tuple[int, int]:
    assert verdict.requests is not None
    assert verdict.tokens is not None
    return verdict.requests.used, verdict.tokens.used


async def test_a_burst_waits_for_a_connection_and_is_no_loss(redis_url: str) -> None:
    fallbacks, many = Fallbacks(), Limits(requests=1_000, tokens=None)
    async with store_of(redis_url, fallbacks=fallbacks) as store:
        asked = [store.take("k", limits=many, cost=ONE) for _ in range(300)]
        verdicts = await asyncio.gather(*asked)
        assert all(verdict.wait_s == 0 for verdict in verdicts)
        assert (store.state, fallbacks.count) == ("shared", 0)
        verdict = await store.take("k", limits=many, cost=NOTHING)
        assert verdict.requests is not None
        assert verdict.requests.used == 300


async def test_gateways_share_one_count(redis_url: str) -> None:
    namespace, fallbacks = uuid4().hex, Fallbacks()
    async with (
        store_of(redis_url, namespace, fallbacks=fallbacks) as one,
        store_of(redis_url, namespace, fallbacks=fallbacks) as other,
    ):
        for store in (one, other) * 5:
            assert (await store.take("k", limits=LIMITS, cost=ONE)).wait_s == 0
        refused = await one.take("k", limits=LIMITS, cost=ONE)
        assert 0 < refused.wait_s <= 61
        assert used(refused) == (10, 500)
        assert (await one.take("other", limits=LIMITS, cost=ONE)).wait_s == 0
        await other.add("k", Cost(requests=0, tokens=700))
        assert used(await one.take("k", limits=LIMITS, cost=NOTHING)) == (10, 1_200)
        await other.add("k", Cost(requests=0, tokens=-900))
        assert used(await one.take("k", limits=LIMITS, cost=NOTHING)) == (10, 300)
        assert one.state == "shared"
    assert fallbacks.count == 0


async def test_many_at_once_never_pass_the_limit(redis_url: str) -> None:
    namespace = uuid4().hex
    async with store_of(redis_url, namespace) as one, store_of(redis_url, namespace) as other:
        verdicts = await asyncio.gather(
            *(store.take("k", limits=LIMITS, cost=ONE) for store in (one, other) * 30)
        )
        assert sum(verdict.wait_s == 0 for verdict in verdicts) == 10


async def test_both_stores_judge_alike(redis_url: str) -> None:
    draw = random.Random(5)
    local = LocalQuotas()
    async with store_of(redis_url) as shared:
        for _ in range(60):
            cost = Cost(requests=draw.randint(0, 1), tokens=draw.randint(0, 120))
            limits = Limits(
                requests=draw.choice((None, 20)), tokens=draw.choice((None, 900, 1_500))
            )
            ours = await local.take("k", limits=limits, cost=cost)
            theirs = await shared.take("k", limits=limits, cost=cost)
            assert (ours.wait_s > 0) == (theirs.wait_s > 0)
            for mine, its in ((ours.requests, theirs.requests), (ours.tokens, theirs.tokens)):
                assert (mine and mine.used) == (its and its.used)


async def test_counters_end_by_themselves_and_old_seconds_are_dropped(redis_url: str) -> None:
    namespace = uuid4().hex
    async with store_of(redis_url, namespace) as store, redis.asyncio.from_url(redis_url) as client:
        key = f"{namespace}:{{quota:k}}"
        await client.hset(key, mapping={"t1": 999, "r1": 9})
        assert used(await store.take("k", limits=LIMITS, cost=ONE)) == (1, 50)
        assert not await client.hexists(key, "t1")
        assert 0 < await client.ttl(key) <= 62


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


async def test_a_lost_redis_leaves_local_counts_that_know_the_last_minute(
    server: RedisServer,
) -> None:
    fallbacks = Fallbacks()
    async with store_of(server.url, fallbacks=fallbacks) as store:
        for _ in range(8):
            await store.take("k", limits=LIMITS, cost=ONE)
        server.stop()
        verdicts = [await store.take("k", limits=LIMITS, cost=ONE) for _ in range(4)]
        assert [verdict.wait_s == 0 for verdict in verdicts] == [True, True, False, False]
        assert (store.state, fallbacks.count) == ("degraded", 4)
        await store.add("k", Cost(requests=0, tokens=5))
        server.start()
        await until(lambda: store.state == "shared")
        assert used(await store.take("k", limits=LIMITS, cost=ONE)) == (1, 50)
        assert fallbacks.count == 4


async def test_starting_without_redis_is_degraded_from_the_start() -> None:
    server = RedisServer()
    fallbacks = Fallbacks()
    async with store_of(server.url, fallbacks=fallbacks) as store:
        assert store.state == "degraded"
        assert (await store.take("k", limits=LIMITS, cost=ONE)).wait_s == 0
        assert fallbacks.count == 1


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="redis://"):
        SharedQuotas(SharedSettings(url="what"), on_fallback=Fallbacks())
