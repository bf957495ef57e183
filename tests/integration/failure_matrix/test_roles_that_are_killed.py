"""Rows of dying workers and gateways: SIGKILL of each role at each state of a handoff.

The victim is a process; everybody else is here, so that what they hold can be counted.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.clients.events import Sealed
from gateway.run_state import RunState
from shared.transport.fault_plan import Fault, FaultKind, Moment
from shared.types.handoff import HandoffState
from tests.support.gates import GatedBlocks
from tests.support.one_transport import (
    OVER_GRPC,
    OVER_NIXL,
    Way,
    asked_late,
    gated_steps,
    held_commits,
    lanes,
    slots,
    states,
)
from tests.support.pools import after_the_canary, running_pool
from tests.support.role_child import role_beside, role_child
from tests.support.transfer_parts import needs_nixl
from tests.support.waiting import until

LONG_S = 600.0
"""A delay that a kill ends."""


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def over_nixl(*values: Any, slowly: bool = False) -> Any:
    marks = [needs_nixl, *([pytest.mark.slow] if slowly else [])]
    return pytest.param(OVER_NIXL, *values, marks=marks)


@pytest.mark.parametrize(
    ("way", "moment", "state", "barred"),
    [
        slow(OVER_GRPC, Moment.HELLO, HandoffState.RESERVED, 0),
        (OVER_GRPC, Moment.MIDDLE, HandoffState.STREAMING, 0),
        slow(OVER_GRPC, Moment.SEAL, HandoffState.STREAMING, 0),
        slow(OVER_GRPC, Moment.ACK, HandoffState.SEALED, 0),
        slow(OVER_GRPC, Moment.ACK, HandoffState.ADOPTED, 0),
        over_nixl(Moment.HELLO, HandoffState.RESERVED, 0, slowly=True),
        over_nixl(Moment.GRANT, HandoffState.STREAMING, 1, slowly=True),
        over_nixl(Moment.FIRST, HandoffState.STREAMING, 1, slowly=True),
        over_nixl(Moment.MIDDLE, HandoffState.STREAMING, 1),
        over_nixl(Moment.LAST, HandoffState.STREAMING, 1, slowly=True),
        over_nixl(Moment.SEAL, HandoffState.STREAMING, 1),
        over_nixl(Moment.ACK, HandoffState.SEALED, 0, slowly=True),
        over_nixl(Moment.ACK, HandoffState.ADOPTED, 0, slowly=True),
    ],
    ids=str,
)
async def test_prefill_before_it_tells_of_its_commit(
    tiny_model_dir: Path,
    profile: Path,
    children: Any,
    way: Way,
    moment: Moment,
    *,
    state: HandoffState,
    barred: int,
) -> None:
    """Row "P dies before seal": another one computes it again, from the token that was shown.

    Over NIXL the slot of a writer that vanished is barred, and the next attempt gets another one.
    A commit goes beside the seal: one that arrived leaves KV that is adopted, which nobody was told
    of and nobody will ask for.
    """
    stuck = after_the_canary(Fault(kind=FaultKind.DELAY, moment=moment, delay_s=LONG_S))
    ways = {"model": str(tiny_model_dir), "profile": str(profile), "faults": stuck, **way.settings}
    with role_child(children, "prefill", **ways) as victim:
        async with way.pool(tiny_model_dir, profile, more_prefills=(victim.address,)) as pool:
            table = pool.decodes[0].core.worker.table
            with pool.avoided("prefill", victim.address):
                right = await pool.ask()
            granted = slots(pool)
            commits, steps = held_commits(pool), gated_steps(pool)
            # An answer to KV that nobody told of may run; it is not to end before the kill.
            steps.gate.arm(1)
            if state is not HandoffState.SEALED:
                commits.set()
            with pool.avoided("prefill", pool.prefills[0].app.address):
                asked = asyncio.create_task(pool.ask())
                await until(lambda: states(pool) == [state] and lanes(pool) == barred)
                assert table.num_quarantined == 0
                victim.kill()
                await until(lambda: not victim.alive)
                steps.gate.open_for_good()
                await until(lambda: states(pool) != [state])
                assert table.num_quarantined == barred, "nobody knows when its last write lands"
                commits.set()
                answer = await asked
            assert (answer.text, answer.error) == (right.text, None)
            assert "attempt 2" in answer.report["route"]
            if barred:
                assert granted[1] != granted[0]
            await until(lambda: table.idle)


@pytest.mark.parametrize("way", [OVER_GRPC, over_nixl()], ids=str)
async def test_prefill_after_its_commit(
    tiny_model_dir: Path,
    profile: Path,
    children: Any,
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row "P dies after commit": the KV is adopted, and nobody needs its sender any more.

    It has nothing left to write, so that no slot waits for it.
    """
    told: list[RunState] = []
    sealed = RunState.sealed

    def noted(state: RunState, event: Sealed) -> None:
        sealed(state, event)
        told.append(state)

    monkeypatch.setattr(RunState, "sealed", noted)
    ways = {"model": str(tiny_model_dir), "profile": str(profile), **way.settings}
    with role_child(children, "prefill", **ways) as victim:
        async with way.pool(tiny_model_dir, profile, more_prefills=(victim.address,)) as pool:
            with pool.avoided("prefill", victim.address):
                right = await pool.ask()
            steps = gated_steps(pool)
            steps.gate.arm(3)
            told.clear()
            with pool.avoided("prefill", pool.prefills[0].app.address):
                asked = asyncio.create_task(pool.ask())
                await until(lambda: steps.gate.reached and bool(told))
                victim.kill()
                await until(lambda: not victim.alive)
                assert pool.decodes[0].core.worker.table.num_quarantined == 0
                steps.gate.open_for_good()
                answer = await asked
            assert (answer.text, answer.error) == (right.text, None)
            assert "attempt 1" in answer.report["route"]


@pytest.mark.parametrize(
    ("way", "moment"),
    [
        (OVER_GRPC, Moment.MIDDLE),
        *(slow(OVER_GRPC, moment) for moment in (Moment.HELLO, Moment.SEAL, Moment.ACK)),
        over_nixl(Moment.HELLO, slowly=True),
        over_nixl(Moment.GRANT, slowly=True),
        over_nixl(Moment.FIRST, slowly=True),
        over_nixl(Moment.MIDDLE),
        over_nixl(Moment.LAST, slowly=True),
        over_nixl(Moment.SEAL, slowly=True),
        over_nixl(Moment.ACK, slowly=True),
    ],
    ids=str,
)
async def test_decode_before_it_has_the_kv(
    tiny_model_dir: Path,
    profile: Path,
    children: Any,
    way: Way,
    moment: Moment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row "D refuses / dies before commit": the next one gets the KV, and nothing is recomputed."""
    if moment is Moment.ACK:
        asked_late(monkeypatch)  # what is adopted at the kill has sent no token yet
    ways = {"model": str(tiny_model_dir), "profile": str(profile), **way.settings}
    with role_child(children, "decode", **ways) as victim:
        async with way.pool(tiny_model_dir, profile, more_decodes=(victim.address,)) as pool:
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


async def test_decode_within_its_stream(tiny_model_dir: Path, profile: Path, children: Any) -> None:
    """Row "D dies mid-stream": one error frame after right tokens; the next one is served."""
    ways = {"model": str(tiny_model_dir), "profile": str(profile)}
    with role_child(children, "decode", **ways) as victim:
        async with running_pool(tiny_model_dir, profile, more_decodes=(victim.address,)) as pool:
            with pool.avoided("decode", victim.address):
                right = await pool.ask(max_tokens=200)

            def kill_soon(frames: int) -> None:
                if frames >= 3 and victim.alive:
                    victim.kill()

            with pool.avoided("decode", pool.decodes[0].address):
                answer = await pool.ask(kill_soon, max_tokens=200)
            assert answer.error is not None
            assert answer.error["code"] == "no_decode_worker"
            assert right.text.startswith(answer.text)
            assert answer.text
            assert (await pool.ask(max_tokens=200)).text == right.text


# Three processes beside the test's own; it once ran out of time on a loaded machine.
@pytest.mark.slow
@pytest.mark.parametrize("where", ["prefill", "transfer", "decode"])
async def test_gateway(tiny_model_dir: Path, profile: Path, children: Any, where: str) -> None:
    """Row "gateway dies": as if all its clients left; a new one serves with the same workers."""
    async with running_pool(tiny_model_dir, profile) as pool:
        right = await pool.ask()
        addresses = {
            "prefill_workers": (pool.prefills[0].app.address,),
            "decode_workers": (pool.decodes[0].address,),
        }
        ways = {"model_dir": str(tiny_model_dir), **addresses}
        async with role_beside(children, "gateway", **ways) as victim:
            parts = pool.prefills[0].app._parts
            assert parts is not None
            blocks, steps = GatedBlocks(parts.compute._runner), gated_steps(pool)
            parts.compute._runner = blocks  # type: ignore[assignment]
            if where == "transfer":
                stuck = Fault(kind=FaultKind.DELAY, moment=Moment.MIDDLE, delay_s=LONG_S)
                pool.orders.waiting = [stuck]
            gate = blocks.gate if where == "prefill" else steps.gate
            gate.arm(3)
            async with httpx.AsyncClient(base_url=f"http://{victim.address}", timeout=60) as http:
                asking = http.post("/v1/completions", json=pool.body())
                asked = asyncio.create_task(asking)
                if where == "transfer":
                    await until(lambda: states(pool) == [HandoffState.STREAMING])
                else:
                    await until(lambda: gate.reached)
                if where == "decode":
                    # It has passed tokens on, and let go of the KV that a second one would need.
                    engine = pool.prefills[0].engine
                    await until(lambda: engine._idle.is_set() and not engine.load().held_handoffs)
                victim.kill()
                with pytest.raises(httpx.TransportError):
                    await asked
            await until(lambda: not victim.alive)
            gate.open_for_good()
        await pool.nothing_left()
        assert (await pool.ask()).text == right.text
