"""Sends what receivers say to the slab, or to the rooms of canaries: the slot number decides."""

from collections.abc import Sequence

from shared.transport.base import DirectLanding, SlabWindow, SlabWriter
from shared.transport.probe_ground import FIRST_PROBE_SLOT, ProbeGround


class ProbedWriter:
    """A `SlabWriter` with rooms for canaries.

    Args:
        slab: takes handoffs.
        probes: takes canaries.
    """

    def __init__(self, slab: SlabWriter, probes: ProbeGround) -> None:
        self._slab = slab
        self._probes = probes

    def _of(self, slot: int) -> SlabWriter:
        return self._probes if slot >= FIRST_PROBE_SLOT else self._slab

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """See `SlabWriter.authorize`."""
        self._of(slot).authorize(slot, generation, token=token)

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        """See `SlabWriter.write`."""
        self._of(slot).write(slot=slot, generation=generation, offset=offset, data=data)

    def heartbeat(self, slot: int, generation: int) -> None:
        """See `SlabWriter.heartbeat`."""
        self._of(slot).heartbeat(slot, generation)

    def writer_closed(self, slot: int, generation: int, *, clean: bool) -> None:
        """See `SlabWriter.writer_closed`."""
        self._of(slot).writer_closed(slot, generation, clean=clean)


class ProbedLanding:
    """A `DirectLanding` with rooms for canaries.

    Args:
        slab: takes handoffs.
        probes: takes canaries.
    """

    def __init__(self, slab: DirectLanding, probes: ProbeGround) -> None:
        self._slab = slab
        self._probes = probes

    def _of(self, slot: int) -> DirectLanding:
        return self._probes if slot >= FIRST_PROBE_SLOT else self._slab

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """See `DirectLanding.authorize`."""
        self._of(slot).authorize(slot, generation, token=token)

    def window(self, slot: int, generation: int) -> SlabWindow:
        """See `DirectLanding.window`."""
        return self._of(slot).window(slot, generation)

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """See `DirectLanding.landed`."""
        return self._of(slot).landed(slot=slot, generation=generation, offset=offset, length=length)

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        """See `DirectLanding.arrived`."""
        self._of(slot).arrived(slot=slot, generation=generation, offset=offset, length=length)

    def heartbeat(self, slot: int, generation: int) -> None:
        """See `DirectLanding.heartbeat`."""
        self._of(slot).heartbeat(slot, generation)

    def writer_closed(
        self, slot: int, generation: int, *, clean: bool, drained: bool, sums: Sequence[int] = ()
    ) -> None:
        """See `DirectLanding.writer_closed`."""
        self._of(slot).writer_closed(slot, generation, clean=clean, drained=drained, sums=sums)
