"""The landing slab: one buffer, leased piecewise, that peers write into.

A lease is named by its slot and its generation. Slot numbers come back; generations never do, so a
write that arrives after its lease ended is refused and cannot touch the next lease. One thread
changes the slab; views of a held lease may be read by another.
"""

from bisect import insort
from dataclasses import dataclass
from heapq import heappop, heappush

from shared.errors import ConfigError, InternalError, InvalidRequestError, StaleWriteError
from shared.kv.memory import Allocator, HostMemory, MemoryPart
from shared.kv.slab_layout import aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLease:
    """A granted piece of the slab."""

    slot: int
    """Slot number; reused after a release."""
    generation: int
    """Grows with every grant."""
    offset: int
    """Start in the slab, in bytes, 64-byte aligned."""
    nbytes: int
    """Bytes granted."""


@dataclass(slots=True)
class _Held:
    lease: SlabLease
    quarantined: bool = False


class Slab:
    """Leases of one buffer; first fit, coalescing.

    Args:
        nbytes: size of the buffer.
        spare_bytes: bytes of `memory` behind it, which are never granted.
        allocate: makes the buffer; the default's is lazily touched.
    """

    def __init__(
        self, nbytes: int, *, spare_bytes: int = 0, allocate: Allocator = HostMemory
    ) -> None:
        if nbytes < 1:
            raise ConfigError(f"the landing slab needs at least one byte, not {nbytes}: raise it")
        self.total_bytes = aligned(nbytes)
        self.memory = allocate(self.total_bytes + spare_bytes)
        self._gaps: list[tuple[int, int]] = [(0, self.total_bytes)]
        self._held: dict[int, _Held] = {}
        self._free_slots: list[int] = []
        self._next_slot = 0
        self._generation = 0

    @property
    def free_bytes(self) -> int:
        """Bytes in no lease."""
        return sum(size for _, size in self._gaps)

    @property
    def quarantined_bytes(self) -> int:
        """Bytes in leases that refuse writes and wait for their release."""
        held = (h for h in self._held.values() if h.quarantined)
        return sum(aligned(h.lease.nbytes) for h in held)

    @property
    def num_leases(self) -> int:
        """Leases held, quarantined ones included."""
        return len(self._held)

    def reserve(self, nbytes: int) -> SlabLease | None:
        """Grants `nbytes` from the first gap that is large enough, or None when there is none.

        Raises:
            InvalidRequestError: `nbytes` is not positive.
        """
        if nbytes < 1:
            raise InvalidRequestError(f"a slab lease of {nbytes} bytes was asked for: at least 1")
        size = aligned(nbytes)
        for index, (start, gap) in enumerate(self._gaps):
            if gap >= size:
                if gap == size:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (start + size, gap - size)
                return self._grant(start, nbytes)
        return None

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview | bytes) -> None:
        """Copies `data` to `offset` of a lease.

        Raises:
            StaleWriteError: the lease ended, is in quarantine, or the bytes do not fit it;
                nothing is written.
        """
        source = memoryview(data).cast("B")
        start = self._window(slot, generation, offset, source.nbytes)
        self.memory.store(start, source)

    def view(self, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """`length` bytes at `offset` of a lease, on the host.

        Writable and valid while the lease is held where the slab is host memory; else a copy.

        Raises:
            StaleWriteError: the lease ended, is in quarantine, or the range leaves it.
        """
        return self.memory.fetch(self._window(slot, generation, offset, length), length)

    def locate(self, slot: int, generation: int, offset: int, length: int) -> MemoryPart:
        """The same bytes where they are.

        Raises:
            StaleWriteError: the lease ended, is in quarantine, or the range leaves it.
        """
        start = self._window(slot, generation, offset, length)
        return MemoryPart(self.memory, start, length)

    def lease(self, slot: int, generation: int) -> SlabLease:
        """The lease of this name, for writers that go past `write`.

        Raises:
            StaleWriteError: it ended, or is in quarantine.
        """
        self._window(slot, generation, 0, 0)
        return self._held[slot].lease

    def is_writable(self, slot: int, generation: int) -> bool:
        """Whether the lease is held and not in quarantine."""
        held = self._held.get(slot)
        return held is not None and held.lease.generation == generation and not held.quarantined

    def quarantine(self, slot: int, generation: int) -> None:
        """Refuses all further access to a lease and keeps its bytes until `release`; twice is fine.

        Raises:
            StaleWriteError: the lease already ended.
        """
        self._lookup(slot, generation).quarantined = True

    def release(self, slot: int, generation: int) -> None:
        """Ends a lease, quarantined or not; its bytes and its slot number can be granted again.

        Raises:
            StaleWriteError: the lease already ended.
        """
        lease = self._lookup(slot, generation).lease
        del self._held[slot]
        heappush(self._free_slots, slot)
        self._add_gap(lease.offset, aligned(lease.nbytes))

    def check_integrity(self) -> None:
        """Verifies that gaps and leases tile the buffer and that slots are consistent.

        Raises:
            InternalError: they do not.
        """
        pieces = [(h.lease.offset, aligned(h.lease.nbytes)) for h in self._held.values()]
        end = 0
        for start, size in sorted(pieces + self._gaps):
            if start != end or size <= 0:
                raise InternalError(f"slab bytes {end}..{start} overlap or are lost; report this")
            end = start + size
        touching = any(
            a + size == b for (a, size), (b, _) in zip(self._gaps, self._gaps[1:], strict=False)
        )
        slots = sorted([*self._held, *self._free_slots])
        if end != self.total_bytes or touching or slots != list(range(self._next_slot)):
            raise InternalError("slab gaps or slots are inconsistent; report this")

    def _grant(self, start: int, nbytes: int) -> SlabLease:
        if self._free_slots:
            slot = heappop(self._free_slots)
        else:
            slot = self._next_slot
            self._next_slot += 1
        self._generation += 1
        lease = SlabLease(slot=slot, generation=self._generation, offset=start, nbytes=nbytes)
        self._held[slot] = _Held(lease)
        return lease

    def _lookup(self, slot: int, generation: int) -> _Held:
        held = self._held.get(slot)
        if held is None or held.lease.generation != generation:
            raise StaleWriteError(
                f"slab slot {slot} generation {generation} is not held: its lease ended; "
                "start a new attempt"
            )
        return held

    def _window(self, slot: int, generation: int, offset: int, length: int) -> int:
        """Where bytes of a lease begin in the buffer."""
        held = self._lookup(slot, generation)
        if held.quarantined:
            raise StaleWriteError(
                f"slab slot {slot} generation {generation} is in quarantine: its handoff was "
                "given up; start a new attempt"
            )
        lease = held.lease
        if offset < 0 or length < 0 or offset + length > lease.nbytes:
            raise StaleWriteError(
                f"bytes {offset}..{offset + length} leave the lease of {lease.nbytes} bytes in "
                f"slab slot {slot}: the sender planned another layout; start a new attempt"
            )
        return lease.offset + offset

    def _add_gap(self, start: int, size: int) -> None:
        insort(self._gaps, (start, size))
        index = self._gaps.index((start, size))
        merged = self._gaps[max(0, index - 1) : index + 2]
        joined: list[tuple[int, int]] = []
        for gap in merged:
            if joined and joined[-1][0] + joined[-1][1] == gap[0]:
                joined[-1] = (joined[-1][0], joined[-1][1] + gap[1])
            else:
                joined.append(gap)
        self._gaps[max(0, index - 1) : index + 2] = joined
