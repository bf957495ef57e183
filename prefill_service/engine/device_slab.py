"""A prompt's slab in the memory of the device that computes it, a lease of the worker's one buffer.

Copies into it are enqueued where the layers are, and nothing waits for them but a range's
publication. Its sums are one launch when the last segment is written. A transport that needs the
bytes on the host gets a copy, range by range.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

import torch

from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab, Range
from prefill_service.engine.slab_room import SlabRoom
from shared.kv.checksum import crc32
from shared.kv.geometry import KvGeometry
from shared.kv.memory import MemoryPart
from shared.kv.slab_layout import SlabLayout
from shared.kv_memory.sums import SegmentSums
from shared.kv_memory.tensor_memory import TensorMemory
from shared.kv_memory.weighted_sum import WORD_BYTES, unsigned
from shared.model.current_device import computing_on
from shared.types.kv_manifest import Segment, SegmentCheck, SegmentKind

LONGEST_JOINED = 1 << 30
"""Most bytes of ranges read as one. A sender has the time of a lease for each, also by a slow
transport, and is heard of in between."""


class DeviceSlab(PromptSlab):
    """See `PromptSlab`; made by `DeviceSlabs`.

    Args:
        layout: where everything lies.
        geometry: shape of the cache.
        part: the memory.
        sums: computes sums on its device.
        executor: computes checksums of copies on the host.
        on_close: told once, when nobody reads or writes the memory any more.
    """

    is_ahead = True

    def __init__(
        self,
        layout: SlabLayout,
        *,
        geometry: KvGeometry,
        part: MemoryPart,
        sums: SegmentSums,
        executor: Executor,
        on_close: Callable[[], None],
    ) -> None:
        memory = part.memory
        assert isinstance(memory, TensorMemory), "a device's memory"
        data = memory.tensor(part.start, part.nbytes)
        super().__init__(layout, geometry=geometry, data=data, on_close=on_close)
        self._part = part
        self._sums = sums
        self._executor = executor
        self._unpublished: list[Range] = []
        self._enqueued = asyncio.Event()
        self._summed = asyncio.Event()
        self._sums_S: torch.Tensor | None = None

    def view(self, offset: int, length: int) -> MemoryPart:
        """The bytes of one range, where they are."""
        return self._part.part(offset, length)

    async def segments(self, check: SegmentCheck = SegmentCheck.CRC32) -> tuple[Segment, ...]:
        """See `PromptSlab.segments`."""
        if check is SegmentCheck.CRC32:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._with_crc32)
        found = zip(self.layout.segments, await self.sums(), strict=True)
        return tuple(replace(segment, sum64=total) for segment, total in found)

    async def enqueued(self) -> None:
        """Waits until all that writes to it is enqueued: its layout is final, its bytes are not."""
        await self._enqueued.wait()

    async def sums(self) -> tuple[int, ...]:
        """The weighted sum of each segment, in the layout's order, once the device has them."""
        await self._summed.wait()
        assert self._sums_S is not None, "summed"
        return tuple(map(unsigned, self._sums_S.tolist()))

    def take_written(self) -> tuple[Range, ...]:
        """Ranges whose copies were enqueued since the last call; the writing thread only."""
        taken, self._unpublished = tuple(self._unpublished), []
        return taken

    def sum_up(self) -> bool:
        """Enqueues the sums once every segment is written; whether it did. Writing thread only."""
        if self._sums_S is not None or len(self._whole) < len(self.layout.segments):
            return False
        self._sums_S = self._sums.enqueue(self._bytes, self.layout.segments)
        self._loop.call_soon_threadsafe(self._enqueued.set)
        return True

    def summed(self) -> None:
        """The device has computed the sums, and so every byte before them; any thread."""
        self._loop.call_soon_threadsafe(self._all_there)

    def _pieces(self, ranges: list[Range]) -> list[Range]:
        return joined(ranges)

    def _all_there(self) -> None:
        self._summed.set()
        self._finished()

    def _written(self, *ranges: Range) -> None:
        self._unpublished.extend(ranges)

    def _with_crc32(self) -> tuple[Segment, ...]:
        return tuple(
            replace(s, crc32=crc32(self.view(s.offset, s.length).on_host()))
            for s in self.layout.segments
        )


def joined(ranges: list[Range], *, longest: int = LONGEST_JOINED) -> list[Range]:
    """Ranges in their order, neighbours that touch as one: a long write is a fast one."""
    found: list[Range] = []
    for offset, length in ranges:
        if found and sum(found[-1]) == offset and found[-1][1] + length <= longest:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((offset, length))
    return found


class DeviceSlabs(SlabRoom):
    """Leases slabs of one buffer, which the worker's transports have registered.

    Args:
        memory: the buffer.
        geometry: shape of the cache.
        executor: computes checksums of copies on the host.
        make_room: drops held KV, which gives its slab back; False when there is none.
    """

    def __init__(
        self,
        memory: TensorMemory,
        *,
        geometry: KvGeometry,
        executor: Executor,
        make_room: Callable[[], bool],
    ) -> None:
        super().__init__(memory, make_room=make_room)
        self._memory = memory
        self._geometry = geometry
        self._executor = executor
        self._sums = SegmentSums(memory.device)

    async def make(self, plan: PromptPlan) -> DeviceSlab:
        """A slab for a prompt whose bytes were admitted; waits while the gaps are too short."""
        part, give_back = await self._take(plan.slab.total_bytes)
        return DeviceSlab(
            plan.slab,
            geometry=self._geometry,
            part=part,
            sums=self._sums,
            executor=self._executor,
            on_close=give_back,
        )

    def warm_up(self) -> None:
        """Computes a first sum, so that no prompt waits for a compilation; blocks."""
        whole = Segment(kind=SegmentKind.KV, index=0, offset=0, length=WORD_BYTES)
        with computing_on(self._memory.device):
            self._sums.enqueue(self._memory.bytes, (whole,))
        if self._memory.device.type == "cuda":
            torch.cuda.synchronize(self._memory.device)
