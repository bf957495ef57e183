"""The slab never lets two leases meet, and late writes never land."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.errors import StaleWriteError
from shared.kv.slab import Slab, SlabLease
from shared.kv.slab_layout import ALIGNMENT, aligned

SIZE = 1_024


class SlabMachine(RuleBasedStateMachine):
    """Leases, writes and releases at random beside a dictionary of expected bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(SIZE)
        self.held: dict[SlabLease, bytearray] = {}
        self.quarantined: set[SlabLease] = set()
        self.ended: list[SlabLease] = []
        self.last_generation = 0

    def pick(self, data: st.DataObject, leases: list[SlabLease]) -> SlabLease:
        return data.draw(st.sampled_from(sorted(leases, key=lambda lease: lease.generation)))

    @rule(nbytes=st.integers(1, SIZE + 1))
    def reserve(self, nbytes: int) -> None:
        lease = self.slab.reserve(nbytes)
        if lease is None:
            assert aligned(nbytes) > self.largest_gap()
            return
        assert lease.nbytes == nbytes
        assert lease.offset % ALIGNMENT == 0
        assert lease.generation > self.last_generation
        assert lease.slot not in {other.slot for other in self.held}
        self.last_generation = lease.generation
        self.slab.write(slot=lease.slot, generation=lease.generation, offset=0, data=bytes(nbytes))
        self.held[lease] = bytearray(nbytes)

    def largest_gap(self) -> int:
        taken = sorted((lease.offset, aligned(lease.nbytes)) for lease in self.held)
        end, largest = 0, 0
        for start, size in [*taken, (SIZE, 0)]:
            largest = max(largest, start - end)
            end = start + size
        return largest

    @precondition(lambda self: self.held)
    @rule(data=st.data(), value=st.binary(min_size=0, max_size=40))
    def write(self, data: st.DataObject, value: bytes) -> None:
        lease = self.pick(data, list(self.held))
        offset = data.draw(st.integers(0, lease.nbytes))
        fits = offset + len(value) <= lease.nbytes
        if lease in self.quarantined or not fits:
            with pytest.raises(StaleWriteError):
                self._write(lease, offset, value)
        else:
            self._write(lease, offset, value)
            self.held[lease][offset : offset + len(value)] = value

    def _write(self, lease: SlabLease, offset: int, value: bytes) -> None:
        self.slab.write(slot=lease.slot, generation=lease.generation, offset=offset, data=value)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        lease = self.pick(data, list(self.held))
        self.slab.quarantine(lease.slot, lease.generation)
        self.quarantined.add(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.pick(data, list(self.held))
        self.slab.release(lease.slot, lease.generation)
        del self.held[lease]
        self.quarantined.discard(lease)
        self.ended.append(lease)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def nothing_reaches_an_ended_lease(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.ended)
        assert not self.slab.is_writable(lease.slot, lease.generation)
        for attempt in (
            lambda: self._write(lease, 0, b"x"),
            lambda: self.slab.view(lease.slot, lease.generation, 0, 1),
            lambda: self.slab.release(lease.slot, lease.generation),
            lambda: self.slab.quarantine(lease.slot, lease.generation),
        ):
            with pytest.raises(StaleWriteError):
                attempt()

    @invariant()
    def everything_adds_up(self) -> None:
        self.slab.check_integrity()
        assert self.slab.num_leases == len(self.held)
        taken = sum(aligned(lease.nbytes) for lease in self.held)
        assert self.slab.free_bytes == SIZE - taken
        held_back = sum(aligned(lease.nbytes) for lease in self.quarantined)
        assert self.slab.quarantined_bytes == held_back
        for lease, expected in self.held.items():
            if lease not in self.quarantined:
                view = self.slab.view(lease.slot, lease.generation, 0, lease.nbytes)
                assert bytes(view) == expected


TestSlab = SlabMachine.TestCase
TestSlab.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
