"""A prompt's slab in host memory, a lease of the worker's one buffer.

Sums by CRC-32 are computed beside the computation. The transports have the buffer registered, so
that one which can reads the bytes where they are.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace

import torch

from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab, Range
from prefill_service.engine.slab_room import SlabRoom
from shared.errors import InternalError
from shared.kv.checksum import crc32
from shared.kv.geometry import KvGeometry
from shared.kv.memory import HostMemory, MemoryPart
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment, SegmentCheck


class HostSlab(PromptSlab):
    """See `PromptSlab`; made by `HostSlabs`.

    Args:
        layout: where everything lies.
        geometry: shape of the cache.
        part: the memory, the host's.
        executor: computes checksums, off the loop and off the engine thread.
        on_close: told once, when nobody reads or writes the memory any more.
    """

    def __init__(
        self,
        layout: SlabLayout,
        *,
        geometry: KvGeometry,
        part: MemoryPart,
        executor: Executor,
        on_close: Callable[[], None],
    ) -> None:
        data = torch.frombuffer(part.on_host(), dtype=torch.uint8)
        super().__init__(layout, geometry=geometry, data=data, on_close=on_close)
        self._part = part
        self._executor = executor
        self._checksums: dict[int, Future[int]] = {}

    def view(self, offset: int, length: int) -> MemoryPart:
        """The bytes of one range, where they are."""
        return self._part.part(offset, length)

    async def segments(self, check: SegmentCheck = SegmentCheck.CRC32) -> tuple[Segment, ...]:
        """See `PromptSlab.segments`.

        Raises:
            InternalError: sums of device memory were asked for.
        """
        if check is not SegmentCheck.CRC32:
            raise InternalError(
                f"{check.value} of a slab in host memory was asked for: a transport between "
                "device memories took it; report this"
            )
        sums = {
            offset: await asyncio.wrap_future(future) for offset, future in self._checksums.items()
        }
        return tuple(replace(s, crc32=sums[s.offset]) for s in self.layout.segments)

    def _written(self, *ranges: Range) -> None:
        self.publish(ranges)

    def _segment_written(self, segment: Segment) -> None:
        super()._segment_written(segment)
        data = self.view(segment.offset, segment.length).on_host()
        self._checksums[segment.offset] = self._executor.submit(crc32, data)


class HostSlabs(SlabRoom):
    """Leases slabs of one buffer, which the worker's transports have registered.

    Args:
        memory: the buffer.
        geometry: shape of the cache.
        executor: computes checksums.
        make_room: drops held KV, which gives its slab back; False when there is none.
    """

    def __init__(
        self,
        memory: HostMemory,
        *,
        geometry: KvGeometry,
        executor: Executor,
        make_room: Callable[[], bool],
    ) -> None:
        super().__init__(memory, make_room=make_room)
        self._geometry = geometry
        self._executor = executor

    async def make(self, plan: PromptPlan) -> HostSlab:
        """A slab for a prompt whose bytes were admitted; waits while the gaps are too short."""
        part, give_back = await self._take(plan.slab.total_bytes)
        return HostSlab(
            plan.slab,
            geometry=self._geometry,
            part=part,
            executor=self._executor,
            on_close=give_back,
        )

    def warm_up(self) -> None:
        """Nothing to do."""
