"""One stub a channel."""

import asyncio
import gc
import weakref

import grpc.aio

from shared.rpc.channel_pool import ChannelPool
from shared.rpc.stubs import Stubs


class Made:
    """A stub that can be counted."""

    def __init__(self, _channel: grpc.aio.Channel) -> None:
        pass


async def test_a_stub_lives_as_long_as_its_channel() -> None:
    pool = ChannelPool(max_channels=1)
    stubs = Stubs(pool, Made)
    first = stubs.to("127.0.0.1:1")
    assert stubs.to("127.0.0.1:1") is first
    gone = weakref.ref(first)
    del first
    other = stubs.to("127.0.0.1:2")
    assert stubs.to("127.0.0.1:2") is other
    while gone() is not None:  # as soon as the pool has closed the channel that made room
        await asyncio.sleep(0.01)
        gc.collect()
    await pool.close()
