"""Leases of peers that write into the slab themselves."""

import pytest

from decode_service.engine.handoffs import Reservation
from decode_service.engine.landing import SlabLanding
from shared.errors import StaleWriteError
from shared.types.handoff import HandoffKey, HandoffState
from tests.support.decode_parts import TableParts, make_parts, reserve_spec

QUARANTINE = 10.0


@pytest.fixture
def parts() -> TableParts:
    return make_parts(lease_s=30.0, quarantine_s=QUARANTINE)


def granted(parts: TableParts) -> Reservation:
    answer = parts.table.reserve(reserve_spec(HandoffKey("h")))
    assert isinstance(answer, Reservation)
    return answer


def lease_of(answer: Reservation) -> tuple[int, int]:
    return answer.lease.slot, answer.lease.generation


def test_a_window_opens_the_lease_to_writes(parts: TableParts) -> None:
    landing, answer = SlabLanding(parts.table, parts.slab), granted(parts)
    window = landing.window(*lease_of(answer))
    assert (window.offset, window.nbytes) == (answer.lease.offset, answer.lease.nbytes)
    assert parts.table.states()[HandoffState.STREAMING] == 1
    assert answer.writer_active, "from now on bytes may come at any time"


def test_what_landed_renews_the_lease_and_is_shown(parts: TableParts) -> None:
    landing, answer = SlabLanding(parts.table, parts.slab), granted(parts)
    slot, generation = lease_of(answer)
    parts.clock.now += 29.0
    chunk = landing.landed(slot=slot, generation=generation, offset=64, length=32)
    assert chunk.nbytes == 32
    assert parts.table.lease_ms(answer) == 30_000
    with pytest.raises(StaleWriteError, match="leave the lease"):
        landing.landed(slot=slot, generation=generation, offset=answer.lease.nbytes, length=1)


def test_a_lease_that_ended_is_refused(parts: TableParts) -> None:
    landing, answer = SlabLanding(parts.table, parts.slab), granted(parts)
    slot, generation = lease_of(answer)
    parts.table.abort(answer.key)
    for ask in (landing.window, landing.heartbeat):
        with pytest.raises(StaleWriteError):
            ask(slot, generation)
    with pytest.raises(StaleWriteError):
        landing.landed(slot=slot, generation=generation, offset=0, length=1)


def test_a_writer_that_vanished_keeps_its_slot_from_others_for_the_quarantine(
    parts: TableParts,
) -> None:
    landing, answer = SlabLanding(parts.table, parts.slab), granted(parts)
    landing.window(*lease_of(answer))
    landing.writer_closed(*lease_of(answer), clean=False, drained=False)
    assert not parts.table.holds(answer.key), "its pages are free at once"
    assert parts.table.num_quarantined == 1
    held = []
    for seconds in (QUARANTINE - 1, 1.0):
        parts.clock.now += seconds
        parts.table.reap()
        held.append(parts.table.num_quarantined)
    assert held == [1, 0]
    assert parts.slab.free_bytes == parts.slab.total_bytes


def test_a_writer_that_says_it_is_still_gives_its_slot_back(parts: TableParts) -> None:
    landing, answer = SlabLanding(parts.table, parts.slab), granted(parts)
    landing.window(*lease_of(answer))
    parts.table.abort(answer.key)
    assert parts.table.num_quarantined == 1
    landing.writer_closed(*lease_of(answer), clean=False, drained=True)
    assert parts.table.idle
