"""Many handoffs at once over each transport, some given up half-way: nothing is left behind."""

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest

from shared.transport.nixl import NixlTransport
from tests.support.transfer_parts import Receiver, each_transport, receiver
from tests.support.waiting import until

HANDOFFS = 600
AT_ONCE = 6
BYTES = 300_000


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def hand_over(end: Receiver, number: int, draw: random.Random) -> bool:
    """One handoff; says whether it was sealed."""
    lease, grant = end.grant(BYTES)
    payload = bytes([number % 251]) * BYTES
    sender = end.transport.sender()
    await sender.open(address=end.address, grant=grant)
    give_up = draw.random() < 0.1
    try:
        for start in range(0, BYTES, 50_000):
            if give_up and draw.random() < 0.3:
                writing = asyncio.create_task(sender.write(start, payload[start:]))
                await asyncio.sleep(0)
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                return False
            await sender.write(start, payload[start : start + 50_000])
        await sender.seal()
        assert end.bytes_of(lease) == payload
    finally:
        await sender.abort()  # after which nothing of it is under way
        end.slab.release(lease.slot, lease.generation)
    return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@each_transport()
async def test_nothing_is_left_after_hundreds_of_handoffs(name: str) -> None:
    draw = random.Random(7)
    async with receiver(name, slab_bytes=16 * 2**20) as end:
        await hand_over(end, 0, random.Random(0))
        held = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
        numbers = iter(range(1, HANDOFFS))

        async def run() -> int:
            return sum([await hand_over(end, number, draw) for number in numbers])

        sealed = sum(await asyncio.gather(*(run() for _ in range(AT_ONCE))))
        assert HANDOFFS * 0.8 < sealed < HANDOFFS
        await until(lambda: len(asyncio.all_tasks()) <= held[2])
        assert end.slab.free_bytes == end.slab.total_bytes
        end.slab.check_integrity()
        assert descriptors() <= held[0] + 2
        assert threading.active_count() <= held[1] + 1
        if isinstance(end.transport, NixlTransport):
            assert end.direct is not None
            assert end.direct.num_lanes == 0
            assert not end.transport.agent._hung
