"""SIGKILL of roles whose bytes go by NIXL, on host memory, where that differs from other ways.

Nobody but a writer knows when its last write lands. So the slot of one that vanished is nobody
else's until it cannot write any more, and everybody else's work goes on meanwhile.
"""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefill_service.engine.sender import Delivery
from shared.transport.base import TransferStats
from shared.transport.fault_plan import Fault, FaultKind, Moment
from shared.types.handoff import HandoffState
from tests.support.one_transport import NIXL, asked_late, nixl_pool, states
from tests.support.pools import after_the_canary
from tests.support.role_child import role_beside, role_child
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl

LONG_S = 600.0
"""A delay that a kill ends."""
ROUNDS = 3


async def test_a_decode_worker_that_has_the_kv_and_was_not_asked_for_tokens(
    tiny_model_dir: Path, profile: Path, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row "D refuses / dies before commit", a moment later: the KV is still there to be resent."""
    asked_late(monkeypatch)
    ways = {"model": str(tiny_model_dir), "profile": str(profile)} | NIXL
    with role_child(children, "decode", **ways) as victim:
        async with nixl_pool(tiny_model_dir, profile, more_decodes=(victim.address,)) as pool:
            with pool.avoided("decode", victim.address):
                right = await pool.ask()
            hand_over = Delivery.hand_over

            async def kill_then(self: Delivery, *args: Any, **kwargs: Any) -> TransferStats:
                stats = await hand_over(self, *args, **kwargs)
                if self.target.address == victim.address:
                    victim.kill()
                    await until(lambda: not victim.alive)
                return stats

            monkeypatch.setattr(Delivery, "hand_over", kill_then)
            runs = pool.prefills[0].runner.runs
            with pool.avoided("decode", pool.decodes[0].address):
                answer = await pool.ask()
            await until(lambda: not victim.alive)
            assert (answer.text, answer.error) == (right.text, None)
            assert pool.prefills[0].runner.runs == runs + 1


@pytest.mark.parametrize("replayed", [False, True], ids=["error frame", "replay"])
async def test_a_decode_worker_within_its_stream(
    tiny_model_dir: Path, profile: Path, children: Any, replayed: bool
) -> None:
    """Row "D dies mid-stream": an error frame, or the rest of the answer where that is allowed."""
    ways = {"model": str(tiny_model_dir), "profile": str(profile)} | NIXL
    fields: dict[str, Any] = {"max_tokens": 200, "tandem": {"mode": "full", "replay": replayed}}
    with role_child(children, "decode", **ways) as victim:
        async with nixl_pool(
            tiny_model_dir, profile, more_decodes=(victim.address,), replay_answers=True
        ) as pool:
            with pool.avoided("decode", victim.address):
                right = await pool.ask(**fields)

            def kill_soon(frames: int) -> None:
                if frames >= 3 and victim.alive:
                    victim.kill()

            with pool.avoided("decode", pool.decodes[0].address):
                answer = await pool.ask(kill_soon, **fields)
            await until(lambda: not victim.alive)
            if replayed:
                assert (answer.text, answer.error) == (right.text, None)
                assert answer.report["replayed_tokens"]
                assert answer.report["transport"] == "nixl"
            else:
                assert answer.error is not None
                assert answer.error["code"] == "no_decode_worker"
                assert right.text.startswith(answer.text)


@pytest.mark.slow
async def test_a_gateway_while_its_prompt_is_handed_over(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    """Row "gateway dies": both sides end the handoff, and the writer says when it has stopped."""
    async with nixl_pool(tiny_model_dir, profile) as pool:
        right = await pool.ask()
        ways: dict[str, Any] = {
            "model_dir": str(tiny_model_dir),
            "prefill_workers": (pool.prefills[0].app.address,),
            "decode_workers": (pool.decodes[0].address,),
        }
        async with role_beside(children, "gateway", **ways) as victim:
            pool.orders.waiting = [
                Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=LONG_S)
            ]
            async with httpx.AsyncClient(base_url=f"http://{victim.address}", timeout=60) as http:
                asked = asyncio.create_task(http.post("/v1/completions", json=pool.body()))
                await until(lambda: states(pool) == [HandoffState.STREAMING])
                victim.kill()
                with pytest.raises(httpx.TransportError):
                    await asked
            await until(lambda: not victim.alive)
        table = pool.decodes[0].core.worker.table
        await until(lambda: table.idle)
        assert table.num_quarantined == 0, "a writer that lives says when it has stopped"
        pool.orders.clear()
        assert (await pool.ask()).text == right.text


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_nothing_piles_up_over_workers_that_die_and_come_back(
    tiny_model_dir: Path, profile: Path, children: Any, role: str
) -> None:
    """Descriptors and tasks after the last of them are those after the first."""
    ways: dict[str, Any] = {"model": str(tiny_model_dir), "profile": str(profile)} | NIXL
    if role == "prefill":
        stuck = Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=LONG_S)
        ways["faults"] = after_the_canary(stuck)
    descriptors: list[int] = []
    tasks = 0
    with ExitStack() as first:
        victim = first.enter_context(role_child(children, role, **ways))
        address = victim.address
        ways["port"] = int(address.rpartition(":")[2])
        async with nixl_pool(
            tiny_model_dir,
            profile,
            breaker_failures=999,
            **{f"more_{role}s": (address,)},
        ) as pool:
            right = await pool.ask()
            for turn in range(ROUNDS):
                with ExitStack() as later:
                    if turn:
                        victim = later.enter_context(role_child(children, role, **ways))
                    await until(lambda: pool.gateway.workers.ready(role) == 2)
                    ours = pool.prefills[0].app if role == "prefill" else pool.decodes[0]
                    with pool.avoided(role, ours.address):
                        if role == "prefill":
                            asked = asyncio.create_task(pool.ask())
                            await until(lambda: states(pool) == [HandoffState.STREAMING])
                            victim.kill()
                            answer = await asked
                        else:
                            await pool.acquaint(address)
                            pool.orders.waiting = [
                                Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=0.05)
                            ]
                            pool.orders.then = lambda _fault: victim.kill()  # noqa: B023
                            answer = await pool.ask()
                            pool.orders.clear()
                assert (answer.text, answer.error) == (right.text, None)
                await pool.nothing_left()
                if turn == 0:
                    tasks = len(asyncio.all_tasks())
                descriptors.append(len(os.listdir("/proc/self/fd")))
            await until(lambda: len(asyncio.all_tasks()) <= tasks + 2)
    assert max(descriptors) <= descriptors[0] + 4, descriptors
