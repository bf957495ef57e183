"""Rooms of canaries end by their clock, and stay shut while a lost writer may live."""

import pytest

from shared.errors import OverloadedError, StaleWriteError
from shared.kv.memory import HostMemory
from shared.transport.base import Grant
from shared.transport.probe_ground import (
    FIRST_PROBE_SLOT,
    LEASE_S,
    PROBE_ROOMS,
    SPARE_BYTES,
    WRITER_S,
    ProbeGround,
)
from tests.support.stepped_clock import SteppedClock


def ground(clock: SteppedClock) -> ProbeGround:
    memory = HostMemory(4096 + SPARE_BYTES)
    return ProbeGround(memory, offset=4096, incarnation="i", clock=clock)


def fill(probes: ProbeGround) -> list[Grant]:
    grants = [probes.open(64) for _ in range(PROBE_ROOMS)]
    with pytest.raises(OverloadedError):
        probes.open(64)
    return grants


def write(probes: ProbeGround, grant: Grant, data: bytes) -> None:
    probes.write(slot=grant.slot, generation=grant.generation, offset=0, data=memoryview(data))


def test_rooms_lie_one_after_the_other_and_are_blank() -> None:
    probes = ground(SteppedClock())
    offsets = [probes.window(g.slot, g.generation).offset for g in fill(probes)]
    assert offsets == [4096 + n * 2**20 for n in range(PROBE_ROOMS)]
    clock = SteppedClock()
    probes = ground(clock)
    first = probes.open(4)
    write(probes, first, b"abcd")
    probes.writer_closed(first.slot, first.generation, clean=True)
    used = probes.close(first.slot, first.generation, token=first.token)
    second = probes.open(4)
    assert second.slot == first.slot
    assert probes.close(second.slot, second.generation, token=second.token) != used


def test_a_silent_room_ends_and_a_heard_one_does_not() -> None:
    clock = SteppedClock()
    probes = ground(clock)
    silent, heard = probes.open(64), probes.open(64)
    clock.now += LEASE_S / 2
    probes.heartbeat(heard.slot, heard.generation)
    clock.now += LEASE_S / 2
    assert probes.num_open == 1
    with pytest.raises(StaleWriteError):
        write(probes, silent, b"x")
    write(probes, heard, b"x")


def test_a_room_whose_writer_vanished_is_shut_for_its_longest_life() -> None:
    clock = SteppedClock()
    probes = ground(clock)
    for grant in fill(probes):
        probes.window(grant.slot, grant.generation)
        probes.writer_closed(grant.slot, grant.generation, clean=False, drained=False)
    assert probes.num_open == 0
    with pytest.raises(OverloadedError):
        probes.open(64)
    clock.now += WRITER_S
    assert probes.open(64)


def test_a_writer_that_is_still_there_at_the_end_bars_its_room_until_it_is_gone() -> None:
    clock = SteppedClock()
    probes = ground(clock)
    grants = fill(probes)
    for grant in grants:
        probes.window(grant.slot, grant.generation)
    first = grants[0]
    probes.close(first.slot, first.generation, token=first.token)
    with pytest.raises(OverloadedError):
        probes.open(64)
    probes.writer_closed(first.slot, first.generation, clean=False, drained=True)
    assert probes.open(64).slot == first.slot
    clock.now += LEASE_S  # the others ended in silence, with their writers
    with pytest.raises(OverloadedError):
        [probes.open(64) for _ in range(2)]


def test_what_an_earlier_writer_says_changes_nothing() -> None:
    probes = ground(SteppedClock())
    first = probes.open(4)
    probes.close(first.slot, first.generation, token=first.token)
    second = probes.open(4)
    probes.writer_closed(first.slot, first.generation, clean=False, drained=False)
    probes.authorize(second.slot, second.generation, token=second.token)


@pytest.mark.parametrize("slot", [0, FIRST_PROBE_SLOT - PROBE_ROOMS, FIRST_PROBE_SLOT - 1, 2**32])
def test_a_slot_that_is_no_room_is_not_taken_for_one(slot: int) -> None:
    probes = ground(SteppedClock())
    grant = fill(probes)[-1]
    with pytest.raises(StaleWriteError):
        probes.close(slot, grant.generation, token=grant.token)
    assert probes.num_open == PROBE_ROOMS
