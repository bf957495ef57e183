"""DELTA's options the slow way: dictionaries and lists, one page at a time, float64.

Given what every head's attention was in every layer, says which pages each layer reads. Written
from the description of the options, not from the policies.
"""

import math
from dataclasses import dataclass, field

PAGE = 16

Probs = list[list[float]]
"""Of one layer: probability of every slot, by query head."""


@dataclass
class SlowOptions:
    """One row. Call `step` once for each token, in order."""

    full_layers: tuple[int, ...]
    budget: int
    recency: int
    prompt_tokens: int
    positions: list[list[list[int]]]
    """Prompt positions by layer and KV head."""
    segment: bool = False
    kv_heads_apart: bool = False
    refresh_every: int = 1
    mass: float | None = None
    last_choice: int | None = None
    remembered: dict[int, list[list[int]]] = field(default_factory=dict)
    """By layer, a row of pages for each head that chooses."""

    def step(self, generated: int, probs: list[Probs]) -> list[list[list[int]] | None]:
        """Pages that each layer reads, by head that chooses; None for all of them."""
        full = set(self.full_layers)
        if self.segment:
            full |= {
                layer
                for layer in range(1, len(self.positions))
                if self.positions[layer] != self.positions[layer - 1]
            }
        sparse = [layer for layer in range(len(self.positions)) if layer not in full]
        crowded = [layer for layer in sparse if self._pages(layer, generated) > self.budget]
        due = self.last_choice is None or generated - self.last_choice >= self.refresh_every
        if due or any(layer not in self.remembered for layer in crowded):
            self._choose(generated, probs, full, crowded)
        return [
            self._read(layer, generated) if layer in crowded else None
            for layer in range(len(self.positions))
        ]

    def _choose(
        self, generated: int, probs: list[Probs], full: set[int], crowded: list[int]
    ) -> None:
        boards: list[dict[int, float]] = [{} for _ in range(self._choosers())]
        self.last_choice = generated
        self.remembered = {}
        for layer, of_heads in enumerate(probs):
            if layer in full:
                self._write(boards, layer, of_heads, generated)
            elif layer in crowded:
                rows = self._page_scores(boards, layer, generated)
                count = self._count(rows)
                self.remembered[layer] = [self._ranked(row)[:count] for row in rows]

    def _choosers(self) -> int:
        return len(self.positions[0]) if self.kv_heads_apart else 1

    def _held(self, layer: int, kv_head: int, generated: int) -> list[int]:
        new = [self.prompt_tokens + token for token in range(generated)]
        return self.positions[layer][kv_head] + new

    def _pages(self, layer: int, generated: int) -> int:
        return math.ceil(len(self._held(layer, 0, generated)) / PAGE)

    def _write(
        self, boards: list[dict[int, float]], layer: int, of_heads: Probs, generated: int
    ) -> None:
        fresh: list[dict[int, float]] = [{} for _ in boards]
        kv_heads = len(self.positions[layer])
        for head, of_head in enumerate(of_heads):
            kv_head = head * kv_heads // len(of_heads)
            entries = fresh[kv_head if self.kv_heads_apart else 0]
            for position, prob in zip(self._held(layer, kv_head, generated), of_head, strict=True):
                entries[position] = max(entries.get(position, 0.0), prob)
        for board, entries in zip(boards, fresh, strict=True):
            board.update(entries)

    def _page_scores(
        self, boards: list[dict[int, float]], layer: int, generated: int
    ) -> list[list[float]]:
        of_heads = []
        for kv_head in range(len(self.positions[layer])):
            board = boards[kv_head if self.kv_heads_apart else 0]
            held = self._held(layer, kv_head, generated)
            pages = [held[first : first + PAGE] for first in range(0, len(held), PAGE)]
            of_heads.append([sum(board.get(p, 0.0) for p in page) for page in pages])
        if self.kv_heads_apart:
            return of_heads
        return [[max(scores) for scores in zip(*of_heads, strict=True)]]

    def _ranked(self, scores: list[float]) -> list[int]:
        """Forced pages, then the others from the best on; of two equal ones the lower first."""
        forced = self._forced(len(scores))
        others = [page for page in range(len(scores)) if page not in forced]
        return [*forced, *sorted(others, key=lambda page: (-scores[page], page))]

    def _forced(self, count: int) -> list[int]:
        return [0, *range(count - self.recency, count)]

    def _count(self, rows: list[list[float]]) -> int:
        if self.mass is None:
            return self.budget
        needed = self.recency + 1
        for scores in rows:
            ranked = self._ranked(scores)
            while sum(scores[page] for page in ranked[:needed]) < self.mass * sum(scores):
                needed += 1
        sizes = [self.recency + 2, 8, 16, 32, 64, 128]
        fitting = min(size for size in sizes if size >= needed)
        return min(fitting, self.budget)

    def _read(self, layer: int, generated: int) -> list[list[int]]:
        recent = self._forced(self._pages(layer, generated))[1:]
        middle = [row[1 + self.recency :] for row in self.remembered[layer]]
        return [sorted([0, *row, *recent]) for row in middle]
