"""How many pages a KV cache has, and what that means in tokens."""

from dataclasses import dataclass

from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE, KvGeometry
from shared.types.methods import PruningParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Pages of the two length groups."""

    whole_layers: int
    """Layers of the front group, whose KV is never pruned."""
    pages_front: int
    """Pages of each layer of the front group."""
    pages_rest: int
    """Pages of each other layer."""
    num_bytes: int
    """Memory of both groups."""

    @property
    def unpruned_tokens(self) -> int:
        """Tokens of unpruned context that fit at once."""
        return min(self.pages_front, self.pages_rest) * PAGE_SIZE


def size_cache(
    geometry: KvGeometry,
    pruning: PruningParams,
    *,
    kv_bytes: int,
    pages_front: int = 0,
    pages_rest: int = 0,
    rest_share: float = 1.0,
) -> CacheSize:
    """Shares `kv_bytes` out as pages of both groups; given page counts win.

    Equal counts let any request decode unpruned. A worker whose prompts are mostly pruned gives
    the rest group fewer, since with equal counts the front group is full long before it.

    Args:
        geometry: shape of the model's cache.
        pruning: says which layers are never pruned.
        kv_bytes: memory of both groups.
        pages_front: pages of each whole layer; 0 takes its share of `kv_bytes`.
        pages_rest: pages of each other layer; 0 takes its share of `kv_bytes`.
        rest_share: pages of the rest group for each one of the front group.

    Raises:
        ConfigError: not even one page fits, in both groups or by `rest_share` in the rest group.
    """
    whole_layers = min(pruning.deferred_layers, pruning.pruning_layer + 1, geometry.num_layers)
    rest_layers = geometry.num_layers - whole_layers
    share = int(kv_bytes // (geometry.page_bytes * (whole_layers + rest_layers * rest_share)))
    front = pages_front or share
    rest = pages_rest or (int(share * rest_share) if rest_layers else share)
    if rest < 1 <= share:
        raise ConfigError(
            f"rest_share {rest_share:g} leaves the pruned layers no page: of kv_bytes {kv_bytes} "
            f"the others get {share}, and they {rest_share:g} of that; raise rest_share or kv_bytes"
        )
    if min(front, rest) < 1:
        raise ConfigError(
            f"kv_bytes {kv_bytes} holds no page: one takes {geometry.page_bytes} bytes in each of "
            f"{geometry.num_layers} layers; raise kv_bytes"
        )
    return CacheSize(
        whole_layers=whole_layers,
        pages_front=front,
        pages_rest=rest,
        num_bytes=geometry.page_bytes * (whole_layers * front + rest_layers * rest),
    )
