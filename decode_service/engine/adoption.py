"""How a landed handoff is checked and brought into pages: by the host, or by the device alone."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch

from decode_service.engine.arrival import Arrival
from decode_service.engine.engine import DecodeEngine
from decode_service.engine.handoffs import ReserveSpec
from decode_service.engine.kv_cache import PagedKvCache, SequencePages
from decode_service.engine.landed import HostBytes, bytes_of
from decode_service.engine.verify import ManifestVerifier
from decode_service.sparsity.layouts import KvLayout
from shared.kv.memory import MemoryPart
from shared.types.kv_manifest import KvManifest, Segment, SegmentKind

SCATTER_BYTES = 64 << 20
"""Bytes copied between two decode steps; more would be felt as a pause by the running rows."""


class Adoption(Protocol):
    """Checks and copies; the slab's lease is pinned meanwhile."""

    def warm_up(self) -> None:
        """Does first-time work, so that no handoff waits for it; needs an idle cache; blocks."""

    def expect(
        self, spec: ReserveSpec, *, landed: MemoryPart, pages: SequencePages
    ) -> Arrival | None:
        """What takes segments into the pages as they land; None where the commit does all of it."""

    async def adopt(
        self,
        manifest: KvManifest,
        *,
        landed: MemoryPart,
        pages: SequencePages,
        arrival: Arrival | None = None,
    ) -> tuple[KvLayout, ...]:
        """Fills the pages with what landed; returns the layouts, which share no memory with it.

        Args:
            manifest: what is promised.
            landed: the handoff's slab.
            pages: its pages.
            arrival: what was taken as it landed.

        Raises:
            ManifestError: what landed is not what was promised; the pages hold nothing of use.
        """

    def close(self) -> None:
        """Lets its threads end; nothing is adopted any more."""


class HostAdoption:
    """Sums in a thread, copies layer by layer on the engine's thread, between its steps.

    Args:
        cache: pages.
        engine: runs the copies.
        verifier: checks the bytes.
    """

    def __init__(
        self, cache: PagedKvCache, *, engine: DecodeEngine, verifier: ManifestVerifier
    ) -> None:
        self._cache = cache
        self._engine = engine
        self._verifier = verifier

    def warm_up(self) -> None:
        """Nothing to do."""

    def expect(
        self, spec: ReserveSpec, *, landed: MemoryPart, pages: SequencePages
    ) -> Arrival | None:
        """None: copies on the host are the engine's, between steps."""
        del spec, landed, pages
        return None

    def close(self) -> None:
        """Nothing to do."""

    async def adopt(
        self,
        manifest: KvManifest,
        *,
        landed: MemoryPart,
        pages: SequencePages,
        arrival: Arrival | None = None,
    ) -> tuple[KvLayout, ...]:
        """See `Adoption.adopt`."""
        assert arrival is None, "none is made here"
        view = landed.on_host()
        layouts = await asyncio.to_thread(self._verifier.check_bytes, manifest, HostBytes(view))
        for batch in _batches(manifest):
            await self._engine.between_steps(partial(self._copy, manifest, batch, view, pages))
        return layouts

    def _copy(
        self,
        manifest: KvManifest,
        batch: list[Segment],
        view: memoryview,
        pages: SequencePages,
    ) -> None:
        for segment in batch:
            flat = torch.frombuffer(bytes_of(segment, view), dtype=torch.uint8)
            slots = manifest.layouts[manifest.layer_layouts[segment.index]].slots
            write_segment(self._cache, segment, flat, pages, slots=slots)


def write_segment(
    cache: PagedKvCache, segment: Segment, data: torch.Tensor, pages: SequencePages, *, slots: int
) -> None:
    """Copies one layer of `slots` slots, given as bytes [segment.length], into its pages."""
    geometry = cache.geometry
    shape = (2, slots, geometry.num_kv_heads, geometry.head_dim)
    kv = data.view(getattr(torch, geometry.dtype)).view(shape)
    cache.write_prompt(pages, layer=segment.index, keys_NGD=kv[0], values_NGD=kv[1])


def kv_segments(manifest: KvManifest) -> list[Segment]:
    """The segments of keys and values, in slab order."""
    return [segment for segment in manifest.segments if segment.kind is SegmentKind.KV]


def _batches(manifest: KvManifest) -> Iterator[list[Segment]]:
    batch: list[Segment] = []
    size = 0
    for segment in kv_segments(manifest):
        batch.append(segment)
        size += segment.length
        if size >= SCATTER_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
