"""Room for prompts' slabs in the one buffer that a worker's transports have registered."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from shared.errors import OverloadedError
from shared.kv.memory import KvMemory, MemoryPart
from shared.kv.memory_reads import MemoryReads
from shared.kv.slab import Slab, SlabLease

QUARANTINE_WAIT_S = 10.0
"""Longest seconds that a prompt waits for room that only quarantined leases take up."""

_log = structlog.get_logger(__name__)


class SlabRoom:
    """Leases of a buffer; one that a transfer may still read is quarantined until it has ended.

    Args:
        memory: the buffer.
        make_room: drops held KV, which gives its lease back; False when there is none.
    """

    def __init__(self, memory: KvMemory, *, make_room: Callable[[], bool]) -> None:
        self.memory = memory
        self.reads = MemoryReads()
        self.quarantines = 0
        self._slab = Slab(memory.nbytes, allocate=lambda _nbytes: memory)
        self._make_room = make_room
        self._freed = asyncio.Event()
        self._first = asyncio.Lock()  # lets in by turns: a long prompt is not passed by short ones
        self._quarantine: dict[SlabLease, MemoryPart] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reads.on_end(self._reads_ended)

    @property
    def num_leases(self) -> int:
        """Slabs that are held, quarantined ones included."""
        return self._slab.num_leases

    @property
    def num_quarantined(self) -> int:
        """Slabs that nobody holds and a transfer may still read."""
        return len(self._quarantine)

    @property
    def quarantined_bytes(self) -> int:
        """Their bytes."""
        return self._slab.quarantined_bytes

    @property
    def quarantine_facts(self) -> dict[str, int]:
        """What health tells of it."""
        return {"slabs": self.num_quarantined, "bytes": self.quarantined_bytes}

    def look_again(self) -> None:
        """There is KV to drop since the last look, which a prompt that waits may have dropped."""
        self._freed.set()

    async def _take(self, nbytes: int) -> tuple[MemoryPart, Callable[[], None]]:
        """A lease, and what ends it; waits while the gaps are too short.

        Raises:
            OverloadedError: what takes up the room is in quarantine, and stayed there.
        """
        self._loop = asyncio.get_running_loop()
        async with self._first:
            while (lease := self._slab.reserve(nbytes)) is None:
                if not self._make_room():
                    self._freed.clear()
                    await self._wait_for_room()
        part = self._slab.locate(lease.slot, lease.generation, 0, lease.nbytes)
        return part, partial(self._release, lease, part)

    async def _wait_for_room(self) -> None:
        if self.num_leases > self.num_quarantined:
            await self._freed.wait()  # of another prompt, which ends
            return
        try:
            async with asyncio.timeout(QUARANTINE_WAIT_S):
                await self._freed.wait()
        except TimeoutError:
            raise OverloadedError(
                f"{self.quarantined_bytes} bytes of the buffer for KV are in quarantine: transfers "
                "to decode workers that hang may still read them, and leave too little room; "
                "retry on another worker, and end the decode workers that hang",
                code="kv_quarantined",
                retry_after_s=QUARANTINE_WAIT_S,
            ) from None

    def _release(self, lease: SlabLease, part: MemoryPart) -> None:
        if self.reads.may_touch(part):
            self._slab.quarantine(lease.slot, lease.generation)
            self._quarantine[lease] = part
            self.quarantines += 1
            _log.warning(
                "a transfer may still read an ended prompt's KV, which is kept from others",
                bytes=lease.nbytes,
                quarantined_bytes=self.quarantined_bytes,
            )
            self._end_quarantines()  # it may have ended just now
        else:
            self._slab.release(lease.slot, lease.generation)
        self._freed.set()

    def _reads_ended(self) -> None:
        """On any thread."""
        if self._loop is not None and self._quarantine and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_quarantines)

    def _end_quarantines(self) -> None:
        waiting = list(self._quarantine.items())
        ended = [lease for lease, part in waiting if not self.reads.may_touch(part)]
        for lease in ended:
            del self._quarantine[lease]
            self._slab.release(lease.slot, lease.generation)
        if ended:
            _log.info("quarantined KV went back", quarantined_bytes=self.quarantined_bytes)
            self._freed.set()
