"""What an operator wants to know of a decode worker at a glance."""

from collections.abc import Mapping

from decode_service.engine.admission import Capacity
from decode_service.engine.sizing import CacheSize
from shared.types.methods import SparsityParams
from shared.types.page_policies import PagePolicyName
from shared.types.page_summary import summary_of


def banner(
    *, capacity: Capacity, size: CacheSize, sparsity: SparsityParams, max_batch: int
) -> Mapping[str, object]:
    """Model, context, KV room, concurrency at full context, page selection."""
    context = capacity.max_model_len
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
        "pages": _pages(sparsity),
    }


def _pages(sparsity: SparsityParams) -> str:
    """Policy, K, L and F, as far as the policy looks at them."""
    text = summary_of(sparsity).text
    if "full_layers" not in PagePolicyName(sparsity.policy).reads:
        return text
    return f"{text}, F {','.join(map(str, sparsity.full_layers))}"
