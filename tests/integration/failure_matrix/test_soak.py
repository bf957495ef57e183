"""Two thousand requests while clients leave and workers are killed: nothing wrong, nothing left."""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.rpc.channel import open_channel
from tests.support.pools import PROMPT, Pool, running_pool
from tests.support.role_child import RoleChild, role_child
from tests.support.waiting import until

REQUESTS = 2_000
AT_ONCE = 6
LEAVE = 0.1
"""Share of the clients that leave."""
KILL_EVERY_S = 60.0
KILL_EVERY_REQUESTS = 400
"""Where a machine is so fast that few minutes pass."""
ERRORS = 0.05
"""Most of the requests that may end with an error: those that a kill hit in mid-stream."""
PROMPTS = [PROMPT[: 60 + 50 * size] for size in range(6)]
LEASES = {"lease_s": 10.0, "adopt_lease_s": 10.0, "quarantine_s": 5.0}


class _Leaves(Exception):
    """A client has read enough."""


@dataclass
class Victims:
    """A worker of each role that is killed in turn and comes back at its address."""

    children: Any
    ways: dict[str, dict[str, Any]]
    running: dict[str, tuple[RoleChild, ExitStack]] = field(default_factory=dict)
    kills: int = 0

    def start(self, role: str) -> RoleChild:
        stack = ExitStack()
        child = stack.enter_context(role_child(self.children, role, **self.ways[role]))
        self.ways[role]["port"] = int(child.address.rpartition(":")[2])
        self.running[role] = (child, stack)
        return child

    async def kill_next(self) -> None:
        role = ("prefill", "decode")[self.kills % 2]
        self.kills += 1
        child, stack = self.running.pop(role)
        child.kill()
        await asyncio.to_thread(stack.close)
        await asyncio.to_thread(self.start, role)

    def close(self) -> None:
        for _, stack in self.running.values():
            stack.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def ask(pool: Pool, prompt: str, *, right: str, draw: random.Random) -> str:
    """One client; says how it ended."""
    leaves_at = draw.randrange(4) if draw.random() < LEAVE else None

    def leave(frames: int) -> None:
        if leaves_at is not None and frames >= leaves_at:
            raise _Leaves

    try:
        answer = await pool.ask(leave, prompt=prompt)
    except _Leaves:
        return "left"
    except AssertionError as refused:
        assert b'"error"' in refused.args[0], refused  # noqa: PT017  a whole answer with a status
        return "refused"
    assert right.startswith(answer.text), "a wrong token"
    if answer.error is None:
        assert answer.text == right
        return "right"
    return "error frame"


async def idle(address: str) -> None:
    """A worker of another process holds nothing."""
    async with open_channel(address) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        async with asyncio.timeout(30):
            while True:
                load = await stub.GetLoad(control_pb2.GetLoadRequest(), timeout=10)
                if (load.free_pages, load.free_slab_bytes) == (
                    load.total_pages,
                    load.total_slab_bytes,
                ) and load.held_handoffs == load.running_requests == load.queued_requests == 0:
                    return
                await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
async def test_two_thousand_requests(
    tiny_model_dir: Path, profile: Path, children: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    both: dict[str, Any] = {"model": str(tiny_model_dir), "profile": str(profile)}
    ways = {"prefill": both | {"sealed_lease_s": 5.0}, "decode": both | LEASES}
    victims = Victims(children, ways)
    draw = random.Random(11)
    ends: Counter[str] = Counter()
    try:
        more = {role: (victims.start(role).address,) for role in ways}
        async with running_pool(
            tiny_model_dir,
            profile,
            more_prefills=more["prefill"],
            more_decodes=more["decode"],
            prefill={"sealed_lease_s": 5.0},
            decode=LEASES,
        ) as pool:
            rights = {prompt: (await pool.ask(prompt=prompt)).text for prompt in PROMPTS}
            for _ in range(4):  # as many connections as there will be clients, to every worker
                await asyncio.gather(*(pool.ask() for _ in range(AT_ONCE)))
            await pool.nothing_left()
            held = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
            numbers = iter(range(REQUESTS))

            async def client() -> None:
                for _ in numbers:
                    prompt = draw.choice(PROMPTS)
                    ends[await ask(pool, prompt, right=rights[prompt], draw=draw)] += 1

            async def killer() -> None:
                while True:
                    goal, began = ends.total() + KILL_EVERY_REQUESTS, time.monotonic()
                    while ends.total() < goal and time.monotonic() < began + KILL_EVERY_S:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                    await victims.kill_next()

            killing = asyncio.create_task(killer())
            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            await until(lambda: len(victims.running) == len(ways))  # none is about to come back
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            await pool.nothing_left()
            for child, _ in victims.running.values():
                await idle(child.address)
            await until(lambda: len(asyncio.all_tasks()) <= held[2] + 2)
            left = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
            with capsys.disabled():
                print(
                    f"\nsoak: {dict(ends)}, {victims.kills} kills, fds/threads/tasks {held}, {left}"
                )
            assert ends.total() == REQUESTS
            assert victims.kills >= REQUESTS // KILL_EVERY_REQUESTS - 1
            assert ends["left"] > REQUESTS * LEAVE * 0.7
            assert ends["error frame"] + ends["refused"] <= REQUESTS * ERRORS
            assert left[0] <= held[0] + 8
            assert left[1] <= held[1] + 2
    finally:
        victims.close()
