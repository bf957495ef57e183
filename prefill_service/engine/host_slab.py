"""Host copy of one prompt's slab: filled by its `SlabWriter`'s thread, read on the loop.

It is as large as the handoff and allocated before the prompt runs, so a slow peer can neither make
memory grow nor hold the engine thread; a second delivery reads the same bytes again.
Shapes: N slots, G KV heads, D head size, R rows of a layout.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future
from dataclasses import replace

import torch

from shared.errors import InternalError
from shared.kv.checksum import crc32
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment, SegmentKind

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HostSlab:
    """The bytes of one handoff, with a feed of the ranges that are final.

    Args:
        layout: where everything lies.
        geometry: shape of the cache.
        executor: computes checksums, off the loop and off the engine thread.
    """

    def __init__(self, layout: SlabLayout, *, geometry: KvGeometry, executor: Executor) -> None:
        self.layout = layout
        self._geometry = geometry
        self._dtype = _DTYPES[geometry.dtype]
        self._executor = executor
        self._bytes = torch.empty(layout.total_bytes, dtype=torch.uint8)
        self._view = self._bytes.numpy().data.toreadonly()
        self._kv_segments = [layout.kv_segment(layer) for layer in range(geometry.num_layers)]
        self._filled = [0] * geometry.num_layers
        self._checksums: dict[int, Future[int]] = {}
        self._loop = asyncio.get_running_loop()
        self._ranges: list[tuple[int, int]] = []
        self._changed = asyncio.Event()
        self._complete = False

    @property
    def nbytes(self) -> int:
        """Bytes held: those of the layout it was made for."""
        return self._bytes.numel()

    @property
    def payload_bytes(self) -> int:
        """Bytes that are sent: every segment, without the gaps between them."""
        return sum(segment.length for segment in self.layout.segments)

    def is_complete(self) -> bool:
        """Whether every byte is final."""
        return self._complete

    def settle(self, layout: SlabLayout) -> None:
        """Takes the final layout, fewer slots where nothing was written; the writing thread only.

        Raises:
            InternalError: it is larger, or moves what was written.
        """
        final = {(s.kind, s.index): s for s in layout.segments}
        moved = [s for s in self.layout.segments if self._begun(s) and final[s.kind, s.index] != s]
        if moved or layout.total_bytes > self.nbytes:
            raise InternalError(
                f"the final layout takes {layout.total_bytes} of {self.nbytes} bytes and moves "
                f"{len(moved)} segments that were written: the runner left its plan; report this"
            )
        self.layout = layout
        self._kv_segments = [layout.kv_segment(layer) for layer in range(len(self._filled))]

    def view(self, offset: int, length: int) -> memoryview:
        """Read-only bytes of one range."""
        return self._view[offset : offset + length]

    def write_kv(
        self, *, layer: int, first_slot: int, keys_NGD: torch.Tensor, values_NGD: torch.Tensor
    ) -> None:
        """Copies slots first_slot.. of one layer, [N, G, D] each; the writing thread only."""
        segment = self._kv_segments[layer]
        count = keys_NGD.shape[0]
        slots = segment.length // self._geometry.token_bytes
        if first_slot + count > slots:
            raise InternalError(
                f"layer {layer} got KV slots {first_slot}..{first_slot + count} of {slots}: "
                "the runner left its plan; report this"
            )
        shape = (2, slots, self._geometry.num_kv_heads, self._geometry.head_dim)
        home = self._typed(segment, self._dtype).view(shape)
        home[0, first_slot : first_slot + count].copy_(keys_NGD)
        home[1, first_slot : first_slot + count].copy_(values_NGD)
        slot_bytes = self._geometry.token_bytes // 2
        start = segment.offset + first_slot * slot_bytes
        if count == slots:
            self._publish((segment.offset, segment.length))
        else:
            piece = count * slot_bytes
            self._publish((start, piece), (start + slots * slot_bytes, piece))
        self._filled[layer] += count
        if self._filled[layer] == slots:
            self._checksum(segment)

    def write_positions(self, *, layout: int, positions_RN: torch.Tensor) -> None:
        """Copies the positions of one layout, int32 [R, N]; the writing thread only."""
        segment = self.layout.positions_segment(layout)
        self._typed(segment, torch.int32).view(positions_RN.shape).copy_(positions_RN)
        self._publish((segment.offset, segment.length))
        self._checksum(segment)

    def finish(self) -> None:
        """Marks every range as final, once nothing is written any more; engine thread only.

        Raises:
            InternalError: a segment never came.
        """
        missing = [s for s in self.layout.segments if s.offset not in self._checksums]
        if missing:
            raise InternalError(
                f"{len(missing)} of {len(self.layout.segments)} KV segments were never written, "
                f"first {missing[0].kind.value} {missing[0].index}: report this"
            )
        self._loop.call_soon_threadsafe(self._finished)

    async def ranges(self) -> AsyncIterator[tuple[int, int]]:
        """(offset, length) of final bytes, each byte once, as they come; ends after `finish`."""
        if self.is_complete():
            for segment in self.layout.segments:
                yield segment.offset, segment.length
            return
        index = 0
        while True:
            changed, last = self._changed, self.is_complete()
            while index < len(self._ranges):
                yield self._ranges[index]
                index += 1
            if last:
                return
            await changed.wait()

    async def segments(self) -> tuple[Segment, ...]:
        """The layout's segments with their checksums; after `finish`."""
        sums = {
            offset: await asyncio.wrap_future(future) for offset, future in self._checksums.items()
        }
        return tuple(replace(s, crc32=sums[s.offset]) for s in self.layout.segments)

    def _begun(self, segment: Segment) -> bool:
        if segment.kind is SegmentKind.KV:
            return self._filled[segment.index] > 0
        return segment.offset in self._checksums

    def _typed(self, segment: Segment, dtype: torch.dtype) -> torch.Tensor:
        return self._bytes[segment.offset : segment.offset + segment.length].view(dtype)

    def _checksum(self, segment: Segment) -> None:
        data = self._view[segment.offset : segment.offset + segment.length]
        self._checksums[segment.offset] = self._executor.submit(crc32, data)

    def _publish(self, *ranges: tuple[int, int]) -> None:
        self._loop.call_soon_threadsafe(self._published, ranges)

    def _published(self, ranges: tuple[tuple[int, int], ...]) -> None:
        self._ranges.extend(ranges)
        self._wake()

    def _finished(self) -> None:
        self._complete = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
