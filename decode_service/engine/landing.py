"""What peers that write into the slab themselves are told, and what of theirs counts."""

from collections.abc import Sequence

from decode_service.engine.reservations import ReservationTable
from shared.kv.slab import Slab
from shared.transport.base import SlabWindow


class SlabLanding:
    """The transport's `DirectLanding`: the table decides, the slab shows.

    Args:
        table: who holds which lease.
        slab: its memory.
    """

    def __init__(self, table: ReservationTable, slab: Slab) -> None:
        self._table = table
        self._slab = slab

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """Lets the holder of a grant name its slot; StaleWriteError for everybody else."""
        self._table.authorize(slot, generation, token=token)

    def window(self, slot: int, generation: int) -> SlabWindow:
        """Where a lease lies; from now on its slot counts as being written.

        Raises:
            StaleWriteError: the lease ended or the push was sealed.
        """
        self._table.heartbeat(slot, generation)
        lease = self._slab.lease(slot, generation)
        return SlabWindow(offset=lease.offset, nbytes=lease.nbytes)

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """Renews the lease of a chunk that was written, and shows it.

        Raises:
            StaleWriteError: the lease ended, the push was sealed, or the chunk leaves it.
        """
        self._table.heartbeat(slot, generation)
        return self._slab.view(slot, generation, offset, length)

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        """See `ReservationTable.arrived`."""
        self._table.arrived(slot, generation, offset=offset, length=length)

    def heartbeat(self, slot: int, generation: int) -> None:
        """Renews the lease; StaleWriteError when it ended or the push was sealed."""
        self._table.heartbeat(slot, generation)

    def writer_closed(
        self, slot: int, generation: int, *, clean: bool, drained: bool, sums: Sequence[int] = ()
    ) -> None:
        """The lane is over; a slot whose writer may still be writing stays out of use."""
        self._table.writer_closed(slot, generation, clean=clean, drained=drained, sums=sums)
