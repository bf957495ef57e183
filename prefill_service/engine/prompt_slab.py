"""One prompt's slab: filled by its `SlabWriter`, read on the loop as a feed of what is final.

It is as large as the handoff and taken before the prompt runs, so a slow peer can neither make
memory grow nor hold the engine thread; a second delivery reads the same bytes again. Where the
bytes lie is for its members to say: `HostSlab`, `DeviceSlab`.
Shapes: N slots, G KV heads, D head size, R rows of a layout.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

import torch

from shared.errors import InternalError
from shared.kv.geometry import KvGeometry
from shared.kv.memory import KvBytes
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import Segment, SegmentCheck, SegmentKind

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Range = tuple[int, int]
"""Offset and length of final bytes."""


class PromptSlab(ABC):
    """The bytes of one handoff, with a feed of the ranges that are final.

    Args:
        layout: where everything lies.
        geometry: shape of the cache.
        data: the bytes, uint8, at least the layout's.
        on_close: told once, when nobody reads or writes the memory any more.
    """

    is_ahead = False
    """Whether its bytes may be final before the first token is drawn, so that a commit need not
    wait for the draw; in host memory the last copies end about when it does."""

    def __init__(
        self,
        layout: SlabLayout,
        *,
        geometry: KvGeometry,
        data: torch.Tensor,
        on_close: Callable[[], None],
    ) -> None:
        self.layout = layout
        self._geometry = geometry
        self._dtype = _DTYPES[geometry.dtype]
        self._bytes = data
        self._kv_segments = [layout.kv_segment(layer) for layer in range(geometry.num_layers)]
        self._filled = [0] * geometry.num_layers
        self._whole: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._ranges: list[Range] = []
        self._changed = asyncio.Event()
        self._complete = False
        self._on_close: Callable[[], None] | None = on_close
        self._writing = False
        self._closed = False

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

    @abstractmethod
    def view(self, offset: int, length: int) -> KvBytes:
        """The bytes of one range."""

    @abstractmethod
    async def segments(self, check: SegmentCheck = SegmentCheck.CRC32) -> tuple[Segment, ...]:
        """The layout's segments with sums of one kind; after `finish`."""

    def begin_writing(self) -> None:
        """The memory is kept until `end_writing`, however the prompt ends."""
        self._writing = True

    def end_writing(self) -> None:
        """Nothing writes any more; any thread, and twice is fine."""
        self._loop.call_soon_threadsafe(self._written_out)

    def close(self) -> None:
        """Gives the memory back, which nobody reads any more; put off while something writes.

        Twice is fine.
        """
        self._closed = True
        if self._on_close is not None and not self._writing:
            on_close, self._on_close = self._on_close, None
            on_close()

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
            self._written((segment.offset, segment.length))
        else:
            piece = count * slot_bytes
            self._written((start, piece), (start + slots * slot_bytes, piece))
        self._filled[layer] += count
        if self._filled[layer] == slots:
            self._segment_written(segment)

    def write_positions(self, *, layout: int, positions_RN: torch.Tensor) -> None:
        """Copies the positions of one layout, int32 [R, N]; the writing thread only."""
        segment = self.layout.positions_segment(layout)
        self._typed(segment, torch.int32).view(positions_RN.shape).copy_(positions_RN)
        self._written((segment.offset, segment.length))
        self._segment_written(segment)

    def finish(self) -> None:
        """Marks every range as final, once nothing is written any more; engine thread only.

        Raises:
            InternalError: a segment never came.
        """
        missing = [s for s in self.layout.segments if s.offset not in self._whole]
        if missing:
            raise InternalError(
                f"{len(missing)} of {len(self.layout.segments)} KV segments were never written, "
                f"first {missing[0].kind.value} {missing[0].index}: report this"
            )
        self._loop.call_soon_threadsafe(self._finished)

    async def ranges(self) -> AsyncIterator[Range]:
        """(offset, length) of final bytes, each byte once, as they come; ends after `finish`."""
        if self.is_complete():
            for piece in self._pieces([(s.offset, s.length) for s in self.layout.segments]):
                yield piece
            return
        index = 0
        while True:
            changed, last = self._changed, self.is_complete()
            while index < len(self._ranges):
                fresh, index = self._ranges[index:], len(self._ranges)
                for piece in self._pieces(fresh):
                    yield piece
            if last:
                return
            await changed.wait()

    def publish(self, ranges: tuple[Range, ...]) -> None:
        """Lets readers have ranges whose bytes are there; any thread."""
        self._loop.call_soon_threadsafe(self._published, ranges)

    def _pieces(self, ranges: list[Range]) -> list[Range]:
        """How ranges that came together are read."""
        return ranges

    @abstractmethod
    def _written(self, *ranges: Range) -> None:
        """These ranges were written, as far as the writing thread is concerned."""

    def _segment_written(self, segment: Segment) -> None:
        self._whole.add(segment.offset)

    def _begun(self, segment: Segment) -> bool:
        if segment.kind is SegmentKind.KV:
            return self._filled[segment.index] > 0
        return segment.offset in self._whole

    def _typed(self, segment: Segment, dtype: torch.dtype) -> torch.Tensor:
        return self._bytes[segment.offset : segment.offset + segment.length].view(dtype)

    def _published(self, ranges: tuple[Range, ...]) -> None:
        self._ranges.extend(ranges)
        self._wake()

    def _written_out(self) -> None:
        self._writing = False
        if self._closed:
            self.close()

    def _finished(self) -> None:
        self._complete = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
