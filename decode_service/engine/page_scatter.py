"""Copies segments of one handoff from a device's slab into its pages, some at a time.

What launches need to know of all segments goes to the device once, so that the last ones, for which
a commit may wait, cost a launch and no more.
"""

import torch

from decode_service.engine.adoption import write_segment
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache, SequencePages
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment, SegmentKind


class PageScatter:
    """Made and used in the stream that copies.

    Args:
        cache: where the pages are.
        layout: where segments lie.
        data: the slab, uint8 [bytes].
        pages: the handoff's.
        kernel: by launches; otherwise by torch's copies.
    """

    def __init__(
        self,
        cache: PagedKvCache,
        *,
        layout: SlabLayout,
        data: torch.Tensor,
        pages: SequencePages,
        kernel: bool,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._data = data
        self._pages = pages
        self._slots = [self._slots_of(segment) for segment in layout.segments]
        self._layers_L4 = None
        if kernel:
            rows = [self._descriptor(number) for number in range(len(layout.segments))]
            self._layers_L4 = torch.tensor(rows, dtype=torch.int64).to(
                cache.device, non_blocking=True
            )

    def copy(self, first: int, end: int) -> None:
        """Enqueues the copies of segments `first`..`end` - 1; positions go nowhere."""
        if self._layers_L4 is not None:
            self._launch(self._layers_L4, range(first, end))
            return
        for segment, slots in zip(
            self._layout.segments[first:end], self._slots[first:end], strict=True
        ):
            if slots:
                piece = self._data[segment.offset : segment.offset + segment.length]
                write_segment(self._cache, segment, piece, self._pages, slots=slots)

    def _launch(self, layers_L4: torch.Tensor, run: range) -> None:
        # Imported late: without a GPU there need be no Triton.
        from decode_service.kernels.scatter_prompt import (  # noqa: PLC0415
            LandedLayers,
            PagePool,
            scatter_prompt,
        )

        front, rest = (
            PagePool(memory=self._cache.pools[group].memory, table=self._pages.of(group).table)
            for group in (LengthGroup.FRONT, LengthGroup.REST)
        )
        landed = LandedLayers(
            slab=self._data.view(front.memory.dtype),
            layers_L4=layers_L4,
            most_slots=max(self._slots[run.start : run.stop]),
            run=run,
        )
        scatter_prompt(landed, front=front, rest=rest)

    def _slots_of(self, segment: Segment) -> int:
        """Slots to copy: none of what holds no keys and values."""
        return self._layout.slots_of(segment.index) if segment.kind is SegmentKind.KV else 0

    def _descriptor(self, number: int) -> tuple[int, int, int, int]:
        """See `LandedLayers.layers_L4`."""
        cache, segment, slots = self._cache, self._layout.segments[number], self._slots[number]
        if not slots:
            return 0, 0, 0, 0
        group = cache.group_of(segment.index)
        index = segment.index - cache.pools[group].layers.start
        return segment.offset // cache.geometry.itemsize, slots, group.value, index
