"""Slabs of prompts in host memory of their own."""

from concurrent.futures import Executor

from prefill_service.engine.host_slab import HostSlab
from shared.kv.geometry import KvGeometry
from shared.kv.memory import HostMemory, MemoryPart
from shared.kv.slab_layout import SlabLayout


def host_slab(layout: SlabLayout, *, geometry: KvGeometry, executor: Executor) -> HostSlab:
    """A slab whose memory nobody else has a lease of."""
    part = MemoryPart(HostMemory(layout.total_bytes), 0, layout.total_bytes)
    return HostSlab(layout, geometry=geometry, part=part, executor=executor, on_close=lambda: None)
