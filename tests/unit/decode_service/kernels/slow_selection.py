"""The choice of pages by sorting; beside its tests."""

import math

from shared.kv.geometry import PAGE_SIZE, pages_for


def slow_selection(
    scores: list[float], length: int, *, budget: int, recency: int
) -> tuple[list[int], int]:
    """Logical pages in ascending order, and the tokens in them."""
    num_pages = pages_for(length)
    ranked = []
    for page, score in enumerate(scores[:num_pages]):
        forced = page == 0 or page >= num_pages - recency
        value = math.inf if forced else -math.inf if math.isnan(score) else score
        ranked.append((-value, page))
    chosen = sorted(page for _, page in sorted(ranked)[:budget])
    tokens = [t for page in chosen for t in range(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)]
    return chosen, sum(t < length for t in tokens)
