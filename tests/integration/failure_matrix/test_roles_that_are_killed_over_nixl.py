"""SIGKILL of each role at each state of a handoff whose bytes go by NIXL, on host memory.

Nobody but a writer knows when its last write lands. So the slot of one that vanished is nobody
else's until it cannot write any more, and everybody else's work goes on meanwhile.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from decode_service.engine.handoffs import Reservation
from prefill_service.engine.sender import Delivery
from shared.transport.base import TransferStats
from shared.transport.fault_plan import Fault, FaultKind, Moment
from shared.transport.nixl import STAGED_CHUNKS, NixlTransport
from shared.transport.nixl_receiver import NixlReceiver
from shared.types.handoff import HandoffState
from tests.support.gates import GatedSteps
from tests.support.pools import Pool, after_the_canary, running_pool
from tests.support.role_child import role_beside, role_child
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

pytestmark = needs_nixl

LONG_S = 600.0
"""A delay that a kill ends."""
NIXL: dict[str, Any] = {"require_transport": "nixl"}
BARRED = NIXL | {"quarantine_s": 2.0}
"""So short that a test can wait for it, and so long that an answer fits in."""
ROUNDS = 3


@asynccontextmanager
async def nixl_pool(model_dir: Path, profile: Path, **settings: Any) -> AsyncIterator[Pool]:
    """Workers of this process that have no other transport; no lane or staged chunk is left."""
    async with running_pool(model_dir, profile, prefill=NIXL, decode=BARRED, **settings) as pool:
        yield pool
        await pool.nothing_left()
        for receiver in receivers(pool):
            await until(lambda receiver=receiver: receiver.num_lanes == 0)  # type: ignore[misc]
        for transport in senders(pool):
            agent = transport.agent
            assert sorted(agent._slots) == list(range(STAGED_CHUNKS))
            assert not agent._hung
            live = {decode.address for decode in pool.decodes}
            known = transport._attached
            await until(lambda known=known, live=live: known.keys() <= live)  # type: ignore[misc]


def receivers(pool: Pool) -> list[NixlReceiver]:
    """Of all decode workers of this process."""
    landings = [decode._landing for decode in pool.decodes]
    found = [landing.chosen.opened["nixl"] for landing in landings if landing is not None]
    return [receiver for receiver in found if receiver is not None]


def senders(pool: Pool) -> list[NixlTransport]:
    """Of all prefill workers of this process, without what breaks them."""
    found = []
    for prefill in pool.prefills:
        parts = prefill.app._parts
        assert parts is not None
        transport: Any = parts.lanes.chosen.opened["nixl"]
        while not isinstance(transport, NixlTransport):
            transport = transport._inner
        found.append(transport)
    return found


def states(pool: Pool) -> list[HandoffState]:
    """Of the handoffs on all decode workers of this process."""
    tables = [decode.core.worker.table for decode in pool.decodes]
    return [held.machine.state for table in tables for held in table._live.values()]


def lanes(pool: Pool) -> int:
    """How many handoffs have an open lane; canaries have rooms of their own."""
    tables = [decode.core.worker.table for decode in pool.decodes]
    held = {(h.lease.slot, h.lease.generation) for table in tables for h in table._live.values()}
    open_for = [
        (lane._slot, lane._generation)
        for receiver in receivers(pool)
        for lane in receiver._lanes.values()
    ]
    return len(held.intersection(open_for))


def slots(pool: Pool) -> list[int]:
    """Of the grants of the only decode worker of this process, from now on."""
    granted: list[int] = []
    worker = pool.decodes[0].core.worker
    reserve = worker.reserve

    def noted(spec: Any) -> Any:
        answer = reserve(spec)
        assert isinstance(answer, Reservation), "there is room"
        granted.append(answer.lease.slot)
        return answer

    worker.reserve = noted  # type: ignore[method-assign]
    return granted


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("moment", "state", "barred"),
    [
        slow(Moment.HELLO, HandoffState.RESERVED, 0),
        slow(Moment.GRANT, HandoffState.STREAMING, 1),
        slow(Moment.FIRST, HandoffState.STREAMING, 1),
        (Moment.MIDDLE, HandoffState.STREAMING, 1),
        slow(Moment.LAST, HandoffState.STREAMING, 1),
        (Moment.SEAL, HandoffState.STREAMING, 1),
        slow(Moment.ACK, HandoffState.SEALED, 0),
    ],
    ids=str,
)
async def test_a_prefill_worker_before_its_commit(
    tiny_model_dir: Path,
    profile: Path,
    children: Any,
    moment: Moment,
    state: HandoffState,
    barred: int,
) -> None:
    """Row "P dies before seal": its slot is barred, the next attempt gets another one."""
    stuck = after_the_canary(Fault(kind=FaultKind.DELAY, moment=moment, delay_s=LONG_S))
    ways = {"model": str(tiny_model_dir), "profile": str(profile), "faults": stuck} | NIXL
    with role_child(children, "prefill", **ways) as victim:
        async with nixl_pool(tiny_model_dir, profile, more_prefills=(victim.address,)) as pool:
            table = pool.decodes[0].core.worker.table
            with pool.avoided("prefill", victim.address):
                right = await pool.ask()
            granted = slots(pool)
            with pool.avoided("prefill", pool.prefills[0].app.address):
                asked = asyncio.create_task(pool.ask())
                await until(lambda: states(pool) == [state] and lanes(pool) == barred)
                assert table.num_quarantined == 0
                victim.kill()
                await until(lambda: states(pool) != [state])
                assert table.num_quarantined == barred, "nobody knows when its last write lands"
                answer = await asked
            assert (answer.text, answer.error) == (right.text, None)
            assert "attempt 2" in answer.report["route"]
            if barred:
                assert granted[1] != granted[0]
            await until(lambda: table.idle)


async def test_a_prefill_worker_after_its_commit(
    tiny_model_dir: Path, profile: Path, children: Any
) -> None:
    """Row "P dies after commit": it has nothing left to write, so that no slot waits for it."""
    ways = {"model": str(tiny_model_dir), "profile": str(profile)} | NIXL
    with role_child(children, "prefill", **ways) as victim:
        async with nixl_pool(tiny_model_dir, profile, more_prefills=(victim.address,)) as pool:
            with pool.avoided("prefill", victim.address):
                right = await pool.ask()
            engine = pool.decodes[0].core.worker.engine
            steps = GatedSteps(engine._runner)
            engine._runner = steps
            steps.gate.arm(3)
            with pool.avoided("prefill", pool.prefills[0].app.address):
                asked = asyncio.create_task(pool.ask())
                await until(lambda: steps.gate.reached)
                victim.kill()
                await until(lambda: not victim.alive)
                assert pool.decodes[0].core.worker.table.num_quarantined == 0
                steps.gate.open_for_good()
                answer = await asked
            assert (answer.text, answer.error) == (right.text, None)
            assert "attempt 1" in answer.report["route"]


@pytest.mark.parametrize(
    "moment",
    [
        slow(Moment.HELLO),
        slow(Moment.GRANT),
        slow(Moment.FIRST),
        Moment.MIDDLE,
        slow(Moment.LAST),
        slow(Moment.SEAL),
        slow(Moment.ACK),
    ],
    ids=str,
)
async def test_a_decode_worker_before_it_has_the_kv(
    tiny_model_dir: Path, profile: Path, children: Any, moment: Moment
) -> None:
    """Row "D refuses / dies before commit": the writes end, and the next one gets the KV."""
    ways = {"model": str(tiny_model_dir), "profile": str(profile)} | NIXL
    with role_child(children, "decode", **ways) as victim:
        async with nixl_pool(tiny_model_dir, profile, more_decodes=(victim.address,)) as pool:
            with pool.avoided("decode", victim.address):
                right = await pool.ask()
            await pool.acquaint(victim.address)
            runner = pool.prefills[0].runner
            pool.orders.waiting = [Fault(kind=FaultKind.DELAY, moment=moment, delay_s=0.05)]
            pool.orders.then = lambda _fault: victim.kill()
            runs = runner.runs
            with pool.avoided("decode", pool.decodes[0].address):
                answer = await pool.ask()
            assert [fault.moment for fault in pool.orders.made] == [moment]
            assert (answer.text, answer.error) == (right.text, None)
            assert runner.runs == runs + 1


async def test_a_decode_worker_that_has_the_kv_and_was_not_asked_for_tokens(
    tiny_model_dir: Path, profile: Path, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row "D refuses / dies before commit", a moment later: the KV is still there to be resent."""
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
