"""The one way to open a Redis client."""

import asyncio

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shared.discovery.redis_client import open_redis

MOMENTS = 40
"""More turns of the loop than a command takes; each is tried as the moment of a cancellation."""


async def test_a_loop_around_commands_ends_whenever_it_is_cancelled(redis_url: str) -> None:
    client = open_redis(redis_url, timeout_s=5.0, retry=Retry(NoBackoff(), 0), max_connections=2)

    async def ask_without_end() -> None:
        while True:
            await client.ping()

    went_on = []
    for moment in range(MOMENTS):
        asking = asyncio.create_task(ask_without_end())
        for _ in range(moment):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking], timeout=1.0)
        if not asking.done():
            went_on.append(moment)
        while not asking.done():
            asking.cancel()
            await asyncio.sleep(0.001)
    await client.aclose()
    assert went_on == []


async def test_commands_of_a_task_that_was_cancelled_before_are_answered(redis_url: str) -> None:
    """Farewells are said while a role ends, which is by cancellation."""
    client = open_redis(redis_url, timeout_s=5.0, retry=Retry(NoBackoff(), 0), max_connections=2)
    said = []

    async def end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append(await client.ping())

    ending = asyncio.create_task(end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await client.aclose()
    assert said == [True]
