"""What an operator wants to know of a decode worker at a glance."""

from collections.abc import Mapping

from decode_service.engine.admission import Capacity
from decode_service.engine.sizing import CacheSize
from shared.types.methods import SparsityParams


def banner(
    *, capacity: Capacity, size: CacheSize, sparsity: SparsityParams, max_batch: int
) -> Mapping[str, object]:
    """Model, context, KV room, concurrency at full context, DELTA's budget."""
    context = capacity.max_model_len
    layers = ",".join(map(str, sparsity.full_layers))
    return {
        "model": capacity.identity.name,
        "dtype": capacity.identity.dtype,
        "context_tokens": context,
        "kv_tokens": size.unpruned_tokens,
        "kv_pages": f"{size.pages_front} front + {size.pages_rest} rest",
        "kv_mib": size.num_bytes >> 20,
        "concurrency_at_full_context": round(size.unpruned_tokens / context, 1),
        "max_batch": max_batch,
        "slab_mib": capacity.slab_bytes >> 20,
        "delta": f"K {sparsity.page_budget}, L {sparsity.recency_pages}, F {layers}",
    }
