"""Room for prompts' slabs in the one buffer that a worker's transports have registered."""

import asyncio
from collections.abc import Callable
from functools import partial

from shared.kv.memory import KvMemory, MemoryPart
from shared.kv.slab import Slab, SlabLease


class SlabRoom:
    """Leases of a buffer.

    Args:
        memory: the buffer.
        make_room: drops held KV, which gives its lease back; False when there is none.
    """

    def __init__(self, memory: KvMemory, *, make_room: Callable[[], bool]) -> None:
        self._slab = Slab(memory.nbytes, allocate=lambda _nbytes: memory)
        self._make_room = make_room
        self._freed = asyncio.Event()
        self._first = asyncio.Lock()  # lets in by turns: a long prompt is not passed by short ones

    @property
    def num_leases(self) -> int:
        """Slabs that are held."""
        return self._slab.num_leases

    def look_again(self) -> None:
        """There is KV to drop since the last look, which a prompt that waits may have dropped."""
        self._freed.set()

    async def _take(self, nbytes: int) -> tuple[MemoryPart, Callable[[], None]]:
        """A lease, and what ends it; waits while the gaps are too short."""
        async with self._first:
            while (lease := self._slab.reserve(nbytes)) is None:
                if not self._make_room():
                    self._freed.clear()
                    await self._freed.wait()
        part = self._slab.locate(lease.slot, lease.generation, 0, lease.nbytes)
        return part, partial(self._release, lease)

    def _release(self, lease: SlabLease) -> None:
        self._slab.release(lease.slot, lease.generation)
        self._freed.set()
