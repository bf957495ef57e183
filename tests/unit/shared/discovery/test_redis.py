"""Redis comes and goes; discovery keeps what it knew."""

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
import redis.asyncio

from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.errors import ConfigError
from tests.support.redis_server import RedisServer
from tests.support.waiting import until
from tests.support.worker_cards import CARD


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


def _settings(url: str) -> RedisSettings:
    return RedisSettings(
        url=url, namespace=uuid4().hex, ttl_s=3.0, renew_s=0.05, poll_s=0.02, timeout_s=0.5
    )


async def test_a_lost_redis_degrades_and_recovers(server: RedisServer) -> None:
    settings = _settings(server.url)
    worker = RedisDiscovery(settings)
    reader = RedisDiscovery(settings, roles=["decode"])
    await worker.publish(CARD)
    await reader.start()
    assert reader.cards("decode") == [CARD]
    server.stop()
    await until(lambda: reader.degraded and worker.degraded)
    assert reader.cards("decode") == [CARD]
    server.start()
    seen_empty = []

    def back() -> bool:
        seen_empty.append(not reader.cards("decode"))
        return not reader.degraded and not worker.degraded

    await until(back)
    assert not any(seen_empty)
    newer = replace(CARD, running=9)
    await worker.publish(newer)
    await until(lambda: reader.cards("decode") == [newer])
    await worker.close()
    await until(lambda: reader.cards("decode") == [])
    await reader.close()


async def test_starting_without_redis_waits_for_it() -> None:
    server = RedisServer()
    settings = _settings(server.url)
    worker = RedisDiscovery(settings)
    reader = RedisDiscovery(settings, roles=["decode"])
    await reader.start()
    await worker.publish(CARD)
    assert reader.degraded
    assert worker.degraded
    server.start()
    await until(lambda: reader.cards("decode") == [CARD])
    await worker.close()
    await reader.close()
    server.stop()


async def test_withdraw_removes_at_once_and_twice_is_fine(redis_url: str) -> None:
    settings = _settings(redis_url)
    worker = RedisDiscovery(settings)
    await worker.publish(CARD)
    await worker.withdraw()
    await worker.withdraw()
    reader = RedisDiscovery(settings, roles=["decode"])
    await reader.start()
    assert reader.cards("decode") == []
    await reader.close()
    await worker.close()


async def test_an_old_process_does_not_withdraw_its_successor(redis_url: str) -> None:
    settings = _settings(redis_url)
    old, new = RedisDiscovery(settings), RedisDiscovery(settings)
    await old.publish(CARD)
    successor = replace(CARD, incarnation="second")
    await new.publish(successor)
    await old.withdraw()
    reader = RedisDiscovery(settings, roles=["decode"])
    await reader.start()
    assert reader.cards("decode") == [successor]
    for one in (reader, old, new):
        await one.close()


async def test_keys_expire_and_membership_is_trimmed(redis_url: str) -> None:
    settings = replace(_settings(redis_url), ttl_s=0.4, renew_s=60)
    worker = RedisDiscovery(settings)
    await worker.publish(CARD)
    client = redis.asyncio.Redis.from_url(redis_url)
    card_key = f"{settings.namespace}:{{workers}}:card:{CARD.worker_id}"
    members_key = f"{settings.namespace}:{{workers}}:members:decode"
    assert 0 < await client.pttl(card_key) <= 400
    reader = RedisDiscovery(settings, roles=["decode"])
    await reader.start()
    await until(lambda: reader.cards("decode") == [])
    assert await client.zcard(members_key) == 0
    await reader.close()
    await worker.close()
    await client.aclose()


async def test_a_foreign_value_is_skipped(redis_url: str) -> None:
    settings = _settings(redis_url)
    worker = RedisDiscovery(settings)
    other = RedisDiscovery(settings)
    await worker.publish(CARD)
    await other.publish(replace(CARD, worker_id="d2"))
    client = redis.asyncio.Redis.from_url(redis_url)
    other._own = None
    await client.set(f"{settings.namespace}:{{workers}}:card:d2", "rubbish")
    reader = RedisDiscovery(settings, roles=["decode"])
    await reader.start()
    assert reader.cards("decode") == [CARD]
    for one in (reader, worker, other):
        await one.close()
    await client.aclose()


def test_a_url_that_is_none_is_a_setting_error() -> None:
    with pytest.raises(ConfigError, match="redis://"):
        RedisDiscovery(RedisSettings(url="localhost:6379"))
