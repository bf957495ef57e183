"""A handoff that landed in device memory: summed, checked and scattered there, beside the steps.

All of it is enqueued on a stream of its own from threads beside the engine's, so that it waits for
no running step; the pages are the handoff's alone until it is adopted. Where a grant says how the
prompt will be pruned, segments are taken as they land (`arrival.py`), and the commit compares.
"""

import asyncio
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import structlog
import torch

from decode_service.engine.arrival import Arrival, Taken
from decode_service.engine.device_taker import DeviceTaker, TakenFrom, TakingTools
from decode_service.engine.handoffs import ReserveSpec
from decode_service.engine.kv_cache import PagedKvCache, SequencePages
from decode_service.engine.landed import DeviceBytes
from decode_service.engine.page_scatter import PageScatter
from decode_service.engine.verify import ManifestVerifier
from decode_service.sparsity.layouts import KvLayout
from shared.kv.memory import MemoryPart
from shared.kv.slab_layout import SlabLayout, aligned
from shared.kv_memory.sums import SegmentSums
from shared.model.current_device import computing_on
from shared.types.kv_manifest import (
    KvManifest,
    LayoutSpec,
    PositionKind,
    Segment,
    SegmentCheck,
    SegmentKind,
)

_log = structlog.get_logger(__name__)


class Behind(Enum):
    """Why a commit has to copy what landed."""

    UNFORESEEN = "unforeseen"
    """Its grant did not say how the prompt would be pruned, or a mass settles that."""
    CHECKSUM = "checksum"
    """It came by way of the host, with checksums of the host's."""
    LAYOUT = "layout"
    """It is laid out otherwise than its grant said."""
    UNCLEAR = "unclear"
    """Some of it did not come, came twice, or could not be taken."""


def _compares(manifest: KvManifest, taken: Taken) -> bool:
    """Whether what was found can be held against the promise."""
    return manifest.check is SegmentCheck.SUM64 and taken.serves(manifest)


def _why_behind(manifest: KvManifest, arrival: Arrival | None, taken: Taken | None) -> Behind:
    if arrival is None:
        return Behind.UNFORESEEN
    if manifest.check is not SegmentCheck.SUM64:
        return Behind.CHECKSUM
    return Behind.UNCLEAR if taken is None else Behind.LAYOUT


class DeviceAdoption:
    """See `Adoption`.

    Args:
        cache: pages, on the device that the slab is on.
        verifier: checks the bytes.
        on_behind: told why a commit copies everything itself.
        kernel: scatter by one launch; None: where a GPU and Triton are.
    """

    def __init__(
        self,
        cache: PagedKvCache,
        *,
        verifier: ManifestVerifier,
        on_behind: Callable[[str], None] = lambda _reason: None,
        kernel: bool | None = None,
    ) -> None:
        self._cache = cache
        self._verifier = verifier
        self._on_behind = on_behind
        self._on_gpu = cache.device.type == "cuda"
        there = self._on_gpu and importlib.util.find_spec("triton") is not None
        self._kernel = there if kernel is None else kernel
        self._sums = SegmentSums(cache.device)
        self._stream = torch.cuda.Stream(cache.device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adoption")

    @property
    def name(self) -> str:
        """How it scatters, for logs."""
        return "triton" if self._kernel else "torch"

    def expect(
        self, spec: ReserveSpec, *, landed: MemoryPart, pages: SequencePages
    ) -> Arrival | None:
        """See `Adoption.expect`."""
        layout = self._verifier.foresee(spec)
        if layout is None:
            return None
        handoff = TakenFrom(
            layout=layout,
            data=DeviceBytes(landed, sums=self._sums),
            pages=pages,
            prompt_tokens=spec.prompt_tokens,
        )
        tools = TakingTools(
            scatter=self._scatter,
            sums=self._sums,
            stream=self._stream,
            verifier=self._verifier,
            for_steps=self._for_steps,
        )
        return Arrival(layout, taker=DeviceTaker(handoff, tools), executor=self._thread)

    async def adopt(
        self,
        manifest: KvManifest,
        *,
        landed: MemoryPart,
        pages: SequencePages,
        arrival: Arrival | None = None,
    ) -> tuple[KvLayout, ...]:
        """See `Adoption.adopt`."""
        taken = None if arrival is None else await arrival.taken()
        if taken is not None and _compares(manifest, taken):
            return self._verifier.check_taken(manifest, taken)
        reason = _why_behind(manifest, arrival, taken)
        self._on_behind(reason.value)
        _log.info(
            "a commit copies what landed, none of it was taken before",
            handoff_id=manifest.handoff.handoff_id,
            reason=reason.value,
        )
        if arrival is not None:
            # What of it still waits or runs must not meet the copies that follow.
            await arrival.give_way()
        return await asyncio.to_thread(self._adopt, manifest, landed, pages)

    def close(self) -> None:
        """See `Adoption.close`."""
        self._thread.shutdown()

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
                layout = SlabLayout(
                    total_bytes=data.numel(),
                    layouts=(LayoutSpec(kind=PositionKind.IDENTITY, slots=1),),
                    layer_layouts=(0,),
                    segments=(slot,),
                )
                self._scatter(layout, data, pages).copy(0, 1)
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
                layout = SlabLayout(
                    total_bytes=landed.nbytes,
                    layouts=manifest.layouts,
                    layer_layouts=manifest.layer_layouts,
                    segments=manifest.segments,
                )
                self._scatter(layout, data.tensor, pages).copy(0, len(layout.segments))
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

    def _scatter(self, layout: SlabLayout, data: torch.Tensor, pages: SequencePages) -> PageScatter:
        return PageScatter(self._cache, layout=layout, data=data, pages=pages, kernel=self._kernel)
