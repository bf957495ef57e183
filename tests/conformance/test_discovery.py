"""Fixed addresses and a real Redis answer the same questions alike."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest

from shared.discovery.base import Discovery
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.discovery.static import StaticDiscovery, StaticSettings
from shared.errors import UnavailableError
from tests.support.transfer_parts import MODEL
from tests.support.waiting import until

ROLES = ("prefill", "decode")


def card(worker_id: str, *, role: str = "decode", **changes) -> WorkerCard:
    base = WorkerCard(
        worker_id=worker_id,
        role=role,
        address=f"{worker_id}:1",
        incarnation=f"{worker_id}-1",
        model=MODEL,
        max_model_len=1_024,
        transports=("grpc",),
    )
    return replace(base, **changes)


@dataclass
class World:
    """A discovery and the workers it may see."""

    discovery: Discovery
    appear: Callable[[WorkerCard], Awaitable[None]]
    vanish: Callable[[WorkerCard], Awaitable[None]]
    """Without a farewell, as a killed process does."""


@asynccontextmanager
async def static_world(_redis_url: str) -> AsyncIterator[World]:
    alive: dict[str, WorkerCard] = {}

    async def fetch(address: str) -> WorkerCard:
        if address not in alive:
            raise UnavailableError("nobody answers")
        return alive[address]

    async def appear(new: WorkerCard) -> None:
        alive[new.address] = new

    async def vanish(gone: WorkerCard) -> None:
        del alive[gone.address]

    discovery = StaticDiscovery(
        {"prefill": ["p1:1"], "decode": ["d1:1", "d2:1"]},
        fetch=fetch,
        settings=StaticSettings(refresh_s=0.01, timeout_s=1.0, forget_after=2),
    )
    yield World(discovery, appear, vanish)
    await discovery.close()


@asynccontextmanager
async def redis_world(redis_url: str) -> AsyncIterator[World]:
    settings = RedisSettings(
        url=redis_url, namespace=uuid4().hex, ttl_s=1.0, renew_s=0.05, poll_s=0.02
    )
    publishers: dict[str, RedisDiscovery] = {}

    async def appear(new: WorkerCard) -> None:
        publisher = publishers.setdefault(new.worker_id, RedisDiscovery(settings))
        await publisher.publish(new)

    async def vanish(gone: WorkerCard) -> None:
        publisher = publishers.pop(gone.worker_id)
        publisher._own = None  # a killed process does not withdraw
        await publisher.close()

    discovery = RedisDiscovery(settings, roles=ROLES)
    yield World(discovery, appear, vanish)
    await discovery.close()
    for publisher in publishers.values():
        await publisher.close()


pytestmark = pytest.mark.parametrize("make", [static_world, redis_world])


def ids(world: World, role: str = "decode") -> list[str]:
    return [found.worker_id for found in world.discovery.cards(role)]


async def test_who_is_there_at_the_start_is_known_at_once(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        await world.appear(card("d1"))
        await world.appear(card("p1", role="prefill"))
        await world.discovery.start()
        assert ids(world) == ["d1"]
        assert ids(world, "prefill") == ["p1"]
        assert world.discovery.cards("decode") == [card("d1")]
        assert not world.discovery.degraded


async def test_nobody_is_a_valid_answer(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        assert ids(world) == []
        await world.discovery.start()
        assert ids(world) == []
        assert ids(world, "other") == []
        assert not world.discovery.degraded


async def test_workers_come_and_go(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        await world.discovery.start()
        await world.appear(card("d2"))
        await until(lambda: ids(world) == ["d2"])
        await world.appear(card("d1"))
        await until(lambda: ids(world) == ["d1", "d2"])
        await world.vanish(card("d2"))
        await until(lambda: ids(world) == ["d1"])


async def test_news_of_a_worker_replaces_what_was_known(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        await world.appear(card("d1"))
        await world.discovery.start()
        newer = card("d1", draining=True, running=3, free_pages=7, queued_tokens=5)
        await world.appear(newer)
        await until(lambda: world.discovery.cards("decode") == [newer])


async def test_a_restarted_worker_shows_its_new_incarnation(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        await world.appear(card("d1"))
        await world.discovery.start()
        await world.vanish(card("d1"))
        await world.appear(card("d1", incarnation="d1-2"))
        await until(lambda: [c.incarnation for c in world.discovery.cards("decode")] == ["d1-2"])


async def test_close_is_safe_twice_and_before_start(make, redis_url: str) -> None:
    async with make(redis_url) as world:
        await world.discovery.close()
        await world.discovery.close()
