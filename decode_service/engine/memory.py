"""The memory of a worker, allocated once at its start: KV pages and the landing slab."""

from dataclasses import dataclass, replace

import torch

from decode_service.config import DecodeConfig
from decode_service.engine.admission import Capacity
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.sizing import CacheSize, size_cache
from shared.kv.room import allocating, check_room
from shared.kv.slab import Slab
from shared.model.weights import LoadedModel
from shared.transport.memory_choice import MemoryChoice, choose_memory
from shared.transport.probe_ground import SPARE_BYTES
from shared.types.memory_kind import MemoryKind
from shared.types.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """What holds KV, and how much of it there is."""

    size: CacheSize
    """Pages."""
    cache: PagedKvCache
    """KV pages."""
    slab: Slab
    """Landing slab."""
    landing: MemoryChoice
    """Kind of its memory."""
    capacity: Capacity
    """What could be granted at most."""

    @property
    def facts(self) -> dict[str, object]:
        """For health: where KV lands."""
        return {"kv_memory": self.landing.facts}

    def placed(self, place: Topology) -> Topology:
        """A place that tells in which memory KV lands."""
        return replace(place, kv_memory=self.landing.kind.value)


def allocate(config: DecodeConfig, loaded: LoadedModel) -> WorkerMemory:
    """Allocates it as the settings say.

    Raises:
        ConfigError: not even one page or one byte of slab, more than there is room for, or the
            device has no such memory.
    """
    model = loaded.model
    size = size_cache(
        model.geometry(),
        loaded.profile.pruning,
        kv_bytes=config.kv_bytes,
        pages_front=config.pages_front,
        pages_rest=config.pages_rest,
        rest_share=config.rest_share,
    )
    required = config.require_transport
    landing = choose_memory(
        config.kv_memory,
        device=config.device,
        transports=(required,) if required else config.transports,
    )
    pages = "pages_front, pages_rest" if config.pages_front or config.pages_rest else "kv_bytes"
    computes_on_host = torch.device(config.device).type == "cpu"
    lands_on_host = computes_on_host or landing.kind is MemoryKind.HOST
    check_room(
        ({pages: size.num_bytes} if computes_on_host else {})
        | ({"slab_bytes": config.slab_bytes} if lands_on_host else {})
    )
    with allocating(pages, nbytes=size.num_bytes, place=config.device):
        cache = PagedKvCache(
            model.geometry(),
            whole_layers=size.whole_layers,
            pages_front=size.pages_front,
            pages_rest=size.pages_rest,
            device=config.device,
            poison=config.poison,
        )
    place = "the host" if lands_on_host else config.device
    with allocating("slab_bytes", nbytes=config.slab_bytes, place=place):
        slab = Slab(config.slab_bytes, spare_bytes=SPARE_BYTES, allocate=landing.allocator)
    longest = model.config.max_position
    capacity = Capacity(
        identity=model.identity(config.model_name or loaded.name),
        num_heads=model.config.num_heads,
        max_model_len=min(config.max_model_len or longest, longest),
        whole_layers=size.whole_layers,
        pages_front=size.pages_front,
        pages_rest=size.pages_rest,
        slab_bytes=slab.total_bytes,
    )
    return WorkerMemory(size=size, cache=cache, slab=slab, landing=landing, capacity=capacity)
