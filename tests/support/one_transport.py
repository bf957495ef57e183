"""Pools of workers whose KV goes by one transport alone, and what NIXL holds in them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from decode_service.engine.handoffs import Reservation
from gateway.attempt import Attempt
from shared.transport.nixl import STAGED_CHUNKS, NixlTransport
from shared.transport.nixl_receiver import NixlReceiver
from shared.types.handoff import HandoffState
from shared.types.kv_manifest import KvManifest
from tests.support.gates import GatedSteps
from tests.support.pools import Pool, running_pool
from tests.support.waiting import until

NIXL: dict[str, Any] = {"require_transport": "nixl"}
BARRED = NIXL | {"quarantine_s": 2.0}
"""So short that a test can wait for it, and so long that an answer fits in."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What KV goes by, among the workers of this process and those that are killed."""

    name: str
    pool: Callable[..., AbstractAsyncContextManager[Pool]]
    """Opens a pool of workers of this process."""
    settings: Mapping[str, Any]
    """Of a worker that is killed."""

    def __str__(self) -> str:
        return self.name


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
    found = [landing.chosen.opened.get("nixl") for landing in landings if landing is not None]
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


def gated_steps(pool: Pool) -> GatedSteps:
    """Puts a gate into the only decode worker of this process."""
    engine = pool.decodes[0].core.worker.engine
    steps = GatedSteps(engine._runner)
    engine._runner = steps
    return steps


def held_commits(pool: Pool) -> asyncio.Event:
    """Keeps commits on their way to the only decode worker of this process until it is set.

    A commit may leave before the push is sealed, so that SEALED lasts only where none arrives.
    """
    worker = pool.decodes[0].core.worker
    commit, arrive = worker.commit, asyncio.Event()

    async def held(manifest: KvManifest, **grant: Any) -> Reservation:
        await arrive.wait()
        return await commit(manifest, **grant)

    worker.commit = held  # type: ignore[method-assign]
    return arrive


def asked_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode workers are called once they have the KV, as behind older prefill workers."""
    monkeypatch.setattr(Attempt, "_call_early", lambda _attempt, _target: None)


OVER_GRPC = Way(name="grpc", pool=running_pool, settings={})
OVER_NIXL = Way(name="nixl", pool=nixl_pool, settings=NIXL)
