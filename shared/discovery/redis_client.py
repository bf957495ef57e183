"""Redis as this project uses it: one way to open a client, scripts, and what a loss looks like."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.exceptions import RedisError

from shared.errors import ConfigError

Script = Callable[..., Awaitable[Any]]
"""Runs a script; takes `keys` and `args`."""

LOST = (RedisError, OSError, TimeoutError)
"""What a command raises while Redis does not answer."""


class _Client(redis.asyncio.Redis):
    async def execute_command(self, *args: object, **options: object) -> object:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        finally:
            # The library sends through asyncio.wait_for, which before Python 3.12 drops a
            # cancellation that comes with its result: a loop around commands would never end.
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError


def open_redis(
    url: str,
    *,
    timeout_s: float,
    retry: Retry,
    max_connections: int,
    health_check_s: int = 0,
) -> redis.asyncio.Redis:
    """A client that answers in text; it connects with its first command.

    Args:
        url: for example redis://127.0.0.1:6379/0.
        timeout_s: longest time to connect, for a command, and to wait for a free connection.
        retry: what follows a failure.
        max_connections: commands at a time; a burst of more waits and is no loss of Redis.
        health_check_s: a connection that was idle for longer is asked first; 0 never asks.

    Raises:
        ConfigError: the URL cannot be read.
    """
    try:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry,
            max_connections=max_connections,
            timeout=timeout_s,
            health_check_interval=health_check_s,
        )
    except ValueError as error:
        raise ConfigError(
            f"the Redis URL cannot be read ({error}); write redis://host:port/db",
            param="redis_url",
        ) from error
    return _Client.from_pool(pool)


def script_of(client: redis.asyncio.Redis, text: str) -> Script:
    """A script that is sent once and then named."""
    return cast("Script", client.register_script(text))
