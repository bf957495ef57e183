"""A handoff that landed in device memory: summed, checked and scattered there, beside the steps.

All of it is enqueued on a stream of its own from a thread beside the engine's, so that it waits for
no running step; the pages are the handoff's alone until it is adopted.
"""

import asyncio
import importlib.util

import torch

from decode_service.engine.adoption import kv_segments, write_segment
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache, SequencePages
from decode_service.engine.landed import DeviceBytes
from decode_service.engine.verify import ManifestVerifier
from decode_service.sparsity.layouts import KvLayout
from shared.kv.memory import MemoryPart
from shared.kv.slab_layout import aligned
from shared.kv_memory.sums import SegmentSums
from shared.model.current_device import computing_on
from shared.types.kv_manifest import KvManifest, Segment, SegmentKind

_Descriptor = tuple[int, int, int, int]
"""See `LandedLayers.layers_L4`."""


class DeviceAdoption:
    """See `Adoption`.

    Args:
        cache: pages, on the device that the slab is on.
        verifier: checks the bytes.
        kernel: scatter by one launch; None: where a GPU and Triton are.
    """

    def __init__(
        self, cache: PagedKvCache, *, verifier: ManifestVerifier, kernel: bool | None = None
    ) -> None:
        self._cache = cache
        self._verifier = verifier
        self._on_gpu = cache.device.type == "cuda"
        there = self._on_gpu and importlib.util.find_spec("triton") is not None
        self._kernel = there if kernel is None else kernel
        self._sums = SegmentSums(cache.device)
        self._stream = torch.cuda.Stream(cache.device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    @property
    def name(self) -> str:
        """How it scatters, for logs."""
        return "triton" if self._kernel else "torch"

    async def adopt(
        self, manifest: KvManifest, *, landed: MemoryPart, pages: SequencePages
    ) -> tuple[KvLayout, ...]:
        """See `Adoption.adopt`."""
        return await asyncio.to_thread(self._adopt, manifest, landed, pages)

    @torch.no_grad()
    def warm_up(self) -> None:
        """See `Adoption.warm_up`: compiles what a first handoff would wait for."""
        cache = self._cache
        pages = cache.reserve(front_tokens=1, rest_tokens=1)
        assert pages is not None, "a cache has at least one page"
        slot = Segment(
            kind=SegmentKind.KV, index=0, offset=0, length=cache.geometry.kv_bytes(slots=1)
        )
        data = torch.zeros(aligned(slot.length), dtype=torch.uint8, device=cache.device)
        with computing_on(cache.device):
            self._sums.enqueue(data, (slot,))
            if self._kernel:
                group = cache.group_of(0)
                self._launch([(0, 1, group.value, 0)], data, pages)
            if self._on_gpu:
                torch.cuda.synchronize(cache.device)
        cache.release(pages)

    @torch.no_grad()
    def _adopt(
        self, manifest: KvManifest, landed: MemoryPart, pages: SequencePages
    ) -> tuple[KvLayout, ...]:
        with torch.cuda.stream(self._stream):
            if self._stream is not None and pages.free_since is not None:
                self._stream.wait_event(pages.free_since)
            data = DeviceBytes(landed, sums=self._sums)
            try:
                # Both are enqueued before either is waited for: refused, the pages go back unread.
                self._scatter(manifest, data.tensor, pages)
                checked = self._verifier.check_bytes(manifest, data)
                return tuple(self._for_steps(layout) for layout in checked)
            finally:
                # Refused or not, pages and slab go to others next: nothing may still copy.
                if self._stream is not None:
                    self._stream.synchronize()

    def _for_steps(self, layout: KvLayout) -> KvLayout:
        """On the device; the allocator learns that steps read it too, which another stream runs."""
        there = layout.on(self._cache.device)
        if self._stream is not None and there.positions_RN is not None:
            there.positions_RN.record_stream(torch.cuda.default_stream(self._cache.device))
        return there

    def _scatter(self, manifest: KvManifest, data: torch.Tensor, pages: SequencePages) -> None:
        segments = kv_segments(manifest)
        if self._kernel:
            layers = [self._descriptor(manifest, segment) for segment in segments]
            self._launch(layers, data, pages)
            return
        for segment in segments:
            piece = data[segment.offset : segment.offset + segment.length]
            write_segment(self._cache, manifest, segment, piece, pages)

    def _launch(self, layers: list[_Descriptor], data: torch.Tensor, pages: SequencePages) -> None:
        # Imported late: without a GPU there need be no Triton.
        from decode_service.kernels.scatter_prompt import (  # noqa: PLC0415
            LandedLayers,
            PagePool,
            scatter_prompt,
        )

        cache = self._cache
        front, rest = (
            PagePool(memory=cache.pools[group].memory, table=pages.of(group).table)
            for group in (LengthGroup.FRONT, LengthGroup.REST)
        )
        landed = LandedLayers(
            slab=data.view(front.memory.dtype),
            layers_L4=torch.tensor(layers, dtype=torch.int64).to(cache.device, non_blocking=True),
            most_slots=max(slots for _, slots, _, _ in layers),
        )
        scatter_prompt(landed, front=front, rest=rest)

    def _descriptor(self, manifest: KvManifest, segment: Segment) -> _Descriptor:
        cache, layer = self._cache, segment.index
        slots = manifest.layouts[manifest.layer_layouts[layer]].slots
        group = cache.group_of(layer)
        index = layer - cache.pools[group].layers.start
        return segment.offset // cache.geometry.itemsize, slots, group.value, index
