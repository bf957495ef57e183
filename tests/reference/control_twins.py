"""Controls and rivals without state, the slow way: plain lists, no tensors, one slot at a time.

Written from what the methods promise, not from the policies.
"""

import math

PAGE = 16


def num_pages(length: int) -> int:
    """Pages of a layer of `length` slots."""
    return math.ceil(length / PAGE)


def streaming_pages(length: int, *, budget: int) -> list[int]:
    """The first page, then as many of the latest as the budget has left."""
    chosen = {0}
    page = num_pages(length) - 1
    while len(chosen) < min(budget, num_pages(length)):
        chosen.add(page)
        page -= 1
    return sorted(chosen)


def recent_pages(length: int, *, budget: int) -> list[int]:
    """The latest pages."""
    return [p for p in range(num_pages(length)) if num_pages(length) - p <= budget]


def probabilities(query: list[float], keys: list[list[float]]) -> list[float]:
    """Softmax attention of one head."""
    scale = 1 / math.sqrt(len(query))
    logits = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def oracle_pages(
    queries: list[list[float]], keys: list[list[list[float]]], *, budget: int, recency: int
) -> list[int]:
    """The best pages by the true attention of every head.

    Args:
        queries: a list a query head.
        keys: a slot's list of its KV heads' keys.
        budget: pages in all.
        recency: latest pages, always read.
    """
    group = len(queries) // len(keys[0])
    heads = [
        probabilities(query, [slot[head // group] for slot in keys])
        for head, query in enumerate(queries)
    ]
    sums = [0.0] * num_pages(len(keys))
    for slot in range(len(keys)):
        sums[slot // PAGE] += max(head[slot] for head in heads)
    forced = {0, *range(len(sums) - recency, len(sums))}
    others = sorted(set(range(len(sums))) - forced, key=lambda page: (-sums[page], page))
    return sorted([*forced, *others[: budget - len(forced)]])
