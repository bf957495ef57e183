"""A prompt's slab in host memory, summed by CRC-32 beside the computation."""

import asyncio
from concurrent.futures import Executor, Future
from dataclasses import replace

import torch

from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab, Range
from shared.errors import InternalError
from shared.kv.checksum import crc32
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment, SegmentCheck


class HostSlab(PromptSlab):
    """See `PromptSlab`.

    Args:
        layout: where everything lies.
        geometry: shape of the cache.
        executor: computes checksums, off the loop and off the engine thread.
    """

    def __init__(self, layout: SlabLayout, *, geometry: KvGeometry, executor: Executor) -> None:
        data = torch.empty(layout.total_bytes, dtype=torch.uint8)
        super().__init__(layout, geometry=geometry, data=data)
        self._executor = executor
        self._view = data.numpy().data.toreadonly()
        self._checksums: dict[int, Future[int]] = {}

    def view(self, offset: int, length: int) -> memoryview:
        """Read-only bytes of one range."""
        return self._view[offset : offset + length]

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

    def close(self) -> None:
        """Nothing to do: the memory goes with the slab."""

    def _written(self, *ranges: Range) -> None:
        self.publish(ranges)

    def _segment_written(self, segment: Segment) -> None:
        super()._segment_written(segment)
        data = self._view[segment.offset : segment.offset + segment.length]
        self._checksums[segment.offset] = self._executor.submit(crc32, data)


class HostSlabs:
    """Makes slabs in host memory.

    Args:
        geometry: shape of the cache.
        executor: computes checksums.
    """

    def __init__(self, geometry: KvGeometry, *, executor: Executor) -> None:
        self._geometry = geometry
        self._executor = executor

    async def make(self, plan: PromptPlan) -> HostSlab:
        """A slab for a prompt."""
        return HostSlab(plan.slab, geometry=self._geometry, executor=self._executor)

    def warm_up(self) -> None:
        """Nothing to do."""
