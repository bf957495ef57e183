"""The memory of a worker, allocated once at its start: KV pages and the landing slab."""

from dataclasses import dataclass

from decode_service.config import DecodeConfig
from decode_service.engine.admission import Capacity
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.sizing import CacheSize, size_cache
from shared.kv.slab import Slab
from shared.model.weights import LoadedModel
from shared.transport.probe_ground import SPARE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """What holds KV, and how much of it there is."""

    size: CacheSize
    """Pages."""
    cache: PagedKvCache
    """KV pages."""
    slab: Slab
    """Landing slab."""
    capacity: Capacity
    """What could be granted at most."""


def allocate(config: DecodeConfig, loaded: LoadedModel) -> WorkerMemory:
    """Allocates it as the settings say.

    Raises:
        ConfigError: not even one page or one byte of slab.
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
    cache = PagedKvCache(
        model.geometry(),
        whole_layers=size.whole_layers,
        pages_front=size.pages_front,
        pages_rest=size.pages_rest,
        device=config.device,
        poison=config.poison,
    )
    slab = Slab(config.slab_bytes, spare_bytes=SPARE_BYTES)
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
    return WorkerMemory(size=size, cache=cache, slab=slab, capacity=capacity)
