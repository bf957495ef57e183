"""Row "heartbeat lost, both alive", and its twin: a sender that is renewed and does nothing."""

from pathlib import Path

import pytest

from shared.transport import base
from shared.transport.fault_plan import Fault, FaultKind, Moment
from shared.types.handoff import HandoffKey
from tests.support.decode_server import ServerPair
from tests.support.pools import Pool, running_pool
from tests.support.prefill_peer import Prepared
from tests.support.waiting import until

LEASE_S = 1.0
LEASE_THAT_LASTS_S = 5.0
"""So long that a machine with other work still renews it."""
MANY_LEASES = 1e-3
"""Heartbeats in a lease: the next one is a thousand leases away."""


def expired(pool: Pool) -> int:
    """Leases that ran out, on all decode workers."""
    return sum(decode.core.worker.table.counters.expired for decode in pool.decodes)


async def test_a_lost_heartbeat_ends_the_lease_and_the_client_sees_nothing_of_it(
    tiny_model_dir: Path, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender goes on after its lease ended: it is refused, and the KV is sent again."""
    ways = {"lease_s": LEASE_S, "quarantine_s": 0.5}
    async with running_pool(tiny_model_dir, profile, decodes=2, decode=ways) as pool:
        right = await pool.ask()
        silence = Fault(kind=FaultKind.DELAY, moment=Moment.GRANT, delay_s=2 * LEASE_S)
        pool.orders.waiting = [silence]
        with monkeypatch.context() as patch:
            patch.setattr(base, "HEARTBEATS_PER_LEASE", MANY_LEASES)
            answer = await pool.ask()
        assert pool.orders.made == [silence]
        assert (answer.text, answer.error) == (right.text, None)
        assert expired(pool) >= 1, "the owner of the slab ended it"


async def test_a_sender_that_stands_still_is_given_up_by_its_own_side(
    tiny_model_dir: Path, profile: Path
) -> None:
    """Its heartbeats go on, so that the owner of the slab would wait for ever."""
    ways = {"lease_s": LEASE_THAT_LASTS_S, "quarantine_s": 0.5}
    async with running_pool(tiny_model_dir, profile, decodes=2, decode=ways) as pool:
        right = await pool.ask()
        still = Fault(kind=FaultKind.DELAY, moment=Moment.FIRST, delay_s=60 * LEASE_THAT_LASTS_S)
        pool.orders.waiting = [still]
        answer = await pool.ask()
        assert (answer.text, answer.error) == (right.text, None)
        assert expired(pool) == 0, "every lease was renewed"


async def test_a_commit_after_the_lease_is_refused(
    pair: ServerPair, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte is there and in order, and the slot may be somebody else's by now."""
    key = HandoffKey("late", 1)
    async with pair(lease_s=0.3, quarantine_s=0.3) as (server, peer):
        grant = await peer.reserve(key, prepared)
        monkeypatch.setattr(base, "HEARTBEATS_PER_LEASE", MANY_LEASES)
        await peer.push(grant, prepared)
        table = server.core.worker.table
        await until(lambda: not table.holds(key))
        assert table.counters.expired == 1
        answer = await peer.commit(key, grant, prepared)
        assert answer.WhichOneof("result") == "rejected"
        assert "expired" in answer.rejected.message
        assert server.core.worker.num_generations == 0
