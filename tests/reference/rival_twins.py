"""Quest, RaaS and H2O the slow way: plain lists and loops in double precision.

Written from the descriptions of the methods, not from the engine. Quest starts from nothing at each
call, the others remember in dictionaries what their method remembers.
"""

import math
from dataclasses import dataclass, field

import torch

PAGE = 16

Vector = list[float]


def quest(
    queries: torch.Tensor, keys: torch.Tensor, *, budget: int, shared: bool
) -> list[list[int]]:
    """Pages that each KV head reads of a layer that holds more than `budget`; one list if shared.

    Args:
        queries: [heads, size].
        keys: [slots, KV heads, size].
        budget: pages in all.
        shared: whether the heads choose together.
    """
    q, k = queries.double().tolist(), keys.double().tolist()
    num_pages, num_kv_heads = math.ceil(len(k) / PAGE), len(k[0])
    group = len(q) // num_kv_heads
    promises: list[list[float]] = []
    for g in range(num_kv_heads):
        mine = q[g * group : (g + 1) * group]
        if shared:
            mine = [[sum(of_heads) / group for of_heads in zip(*mine, strict=True)]]
        promises.append(
            [max(_promise(one, _page(k, p, g)) for one in mine) for p in range(num_pages - 1)]
        )
    if shared:
        promises = [[sum(of_heads) for of_heads in zip(*promises, strict=True)]]
    chosen = []
    for row in promises:
        best_first = _best_first(dict(enumerate(row)))
        chosen.append([*sorted(best_first[: budget - 1]), num_pages - 1])
    return chosen


@dataclass
class Raas:
    """RaaS in one layer."""

    prompt_slots: int
    budget: int
    recency: int
    stamps: dict[int, int] = field(default_factory=dict)
    """Of the answer's pages that are still there."""

    def step(self, queries: torch.Tensor, keys: torch.Tensor, *, now: int) -> list[int]:
        """Pages read."""
        q, k = queries.double().tolist(), keys.double().tolist()
        last, prompt_pages = math.ceil(len(k) / PAGE) - 1, math.ceil(self.prompt_slots / PAGE)
        if last >= prompt_pages:
            self.stamps[last] = now
        resident = [*range(prompt_pages), *sorted(self.stamps)]
        for page in self._high(q, k, resident):
            if page in self.stamps:
                self.stamps[page] = now
        while len(self.stamps) > max(self.budget - prompt_pages, self.recency):
            del self.stamps[min(self.stamps, key=lambda page: (self.stamps[page], page))]
        return [*range(prompt_pages), *sorted(self.stamps)]

    @staticmethod
    def _high(q: list[Vector], k: list[list[Vector]], resident: list[int]) -> list[int]:
        group = len(q) // len(k[0])
        estimate = dict.fromkeys(resident, 0.0)
        for head, query in enumerate(q):
            scale = math.sqrt(len(query))
            logits = [_promise(query, _page(k, page, head // group)) / scale for page in resident]
            for page, probability in zip(resident, _softmax(logits), strict=True):
                estimate[page] = max(estimate[page], probability)
        return _best_first(estimate)[: math.ceil(len(resident) / 2)]


@dataclass
class H2o:
    """H2O in one layer."""

    budget: int
    """Slots."""
    recent: int
    """Slots among them that are the last ones."""
    weights: list[dict[int, float]] = field(default_factory=list)
    """Attention that the slots drew which are still there, by KV head."""

    def step(self, queries: torch.Tensor, keys: torch.Tensor) -> list[list[int]]:
        """Slots that each KV head reads."""
        q, k = queries.double().tolist(), keys.double().tolist()
        if not self.weights:
            self.weights = [dict.fromkeys(range(len(k)), 0.0) for _ in k[0]]
        else:
            for weight in self.weights:
                weight[len(k) - 1] = 0.0
                self._make_fit(weight, length=len(k))
        read = [sorted(weight) for weight in self.weights]
        group = len(q) // len(k[0])
        for head, query in enumerate(q):
            slots = read[head // group]
            logits = [_dot(query, k[s][head // group]) / math.sqrt(len(query)) for s in slots]
            for slot, probability in zip(slots, _softmax(logits), strict=True):
                self.weights[head // group][slot] += probability
        return read

    def _make_fit(self, weight: dict[int, float], *, length: int) -> None:
        if len(weight) <= self.budget:
            return
        older = {slot: w for slot, w in weight.items() if slot < length - self.recent}
        for slot in _best_first(older)[self.budget - self.recent :]:
            del weight[slot]


def _best_first(values: dict[int, float]) -> list[int]:
    return sorted(values, key=lambda unit: (-values[unit], unit))


def _page(k: list[list[Vector]], page: int, head: int) -> list[Vector]:
    return [slot[head] for slot in k[page * PAGE : (page + 1) * PAGE]]


def _promise(query: Vector, keys: list[Vector]) -> float:
    """What no key of the page can exceed: in each dimension the best that any of them has."""
    return sum(max(q * key[d] for key in keys) for d, q in enumerate(query))


def _dot(left: Vector, right: Vector) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    return [power / sum(powers) for power in powers]
