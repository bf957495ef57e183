"""DELTA the slow way: no pages in memory, no batches, a dictionary for a score board.

Every head keeps plain lists of keys, values and positions; attention is float64. Written from the
description of the method, not from the engine.

Shapes: N prompt slots, G KV heads, D head size.
"""

import math
from dataclasses import dataclass, field

import torch

from shared.model.transformer import Transformer

PAGE = 16


@dataclass
class SlowPrompt:
    """A prompt's KV as it was handed over."""

    prompt_tokens: int
    keys: list[torch.Tensor]
    """[N, G, D] a layer."""
    values: list[torch.Tensor]
    positions: list[list[list[int]]]
    """Per layer and KV head."""


@dataclass
class SlowDelta:
    """One answer."""

    model: Transformer
    prompt: SlowPrompt
    full_layers: tuple[int, ...]
    """Every layer for dense attention."""
    budget: int = 10**9
    recency: int = 1
    fed: int = 0
    pages_read: list[dict[int, list[int]]] = field(default_factory=list)
    """Per step: logical pages of each sparse layer."""
    attended: list[int] = field(default_factory=list)
    """Per step: KV slots read, summed over layers."""

    def __post_init__(self) -> None:
        self.keys = [k.double() for k in self.prompt.keys]
        self.values = [v.double() for v in self.prompt.values]
        self.positions = [[list(head) for head in layer] for layer in self.prompt.positions]

    def step(self, token: int) -> torch.Tensor:
        """Logits after one more token."""
        model, position = self.model, self.prompt.prompt_tokens + self.fed
        self.fed += 1
        x = model.embed(torch.tensor([token]))
        rope = model.rope(torch.tensor([position]), context_tokens=position + 1)
        board: dict[int, float] = {}
        self.pages_read.append({})
        self.attended.append(0)
        for index, layer in enumerate(model.layers):
            q, k, v = layer.qkv(x, rope)
            self.keys[index] = torch.cat((self.keys[index], k.double()))
            self.values[index] = torch.cat((self.values[index], v.double()))
            for head in self.positions[index]:
                head.append(position)
            slots = self._slots_to_read(index, board)
            self.attended[-1] += len(slots)
            out, alphas = self._attend(index, q[0].double(), slots)
            if self._plans(index):
                board.update(self._entries(index, alphas))
            x = layer.finish(x, out[None].to(x.dtype))
        return model.logits(x)[0]

    def _plans(self, layer: int) -> bool:
        last = layer == self.model.config.num_layers - 1
        return layer in self.full_layers and not last and layer + 1 not in self.full_layers

    def _slots_to_read(self, layer: int, board: dict[int, float]) -> list[int]:
        total = self.keys[layer].shape[0]
        num_pages = math.ceil(total / PAGE)
        if layer in self.full_layers:
            return list(range(total))
        pages = list(range(num_pages))
        if num_pages > self.budget:
            pages = self._choose(layer, board, num_pages)
        self.pages_read[-1][layer] = pages
        return [s for page in pages for s in range(page * PAGE, min((page + 1) * PAGE, total))]

    def _choose(self, layer: int, board: dict[int, float], num_pages: int) -> list[int]:
        scores = []
        for page in range(num_pages):
            of_heads = [
                sum(board.get(p, 0.0) for p in head[page * PAGE : (page + 1) * PAGE])
                for head in self.positions[layer]
            ]
            scores.append(max(of_heads))
        forced = {0, *range(num_pages - self.recency, num_pages)}
        others = [page for page in range(num_pages) if page not in forced]
        others.sort(key=lambda page: (-scores[page], page))
        return sorted([*forced, *others[: self.budget - len(forced)]])

    def _attend(
        self, layer: int, q: torch.Tensor, slots: list[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        group = q.shape[0] // self.keys[layer].shape[1]
        outs, alphas = [], []
        for head in range(q.shape[0]):
            keys = self.keys[layer][slots, head // group]
            alpha = torch.softmax(keys @ q[head] / math.sqrt(q.shape[1]), dim=0)
            outs.append(alpha @ self.values[layer][slots, head // group])
            alphas.append(alpha)
        return torch.stack(outs), alphas

    def _entries(self, layer: int, alphas: list[torch.Tensor]) -> dict[int, float]:
        entries: dict[int, float] = {}
        group = len(alphas) // len(self.positions[layer])
        for head, alpha in enumerate(alphas):
            for position, value in zip(
                self.positions[layer][head // group], alpha.tolist(), strict=True
            ):
                entries[position] = max(entries.get(position, 0.0), value)
        return entries


def slow_prefill(model: Transformer, token_ids: list[int]) -> tuple[SlowPrompt, torch.Tensor]:
    """KV of the whole prompt in every layer, and the logits of its last token."""
    count = len(token_ids)
    positions = torch.arange(count)
    x = model.embed(torch.tensor(token_ids))
    rope = model.rope(positions, context_tokens=count)
    hidden = torch.triu(torch.ones(count, count, dtype=torch.bool), diagonal=1)
    keys, values = [], []
    for layer in model.layers:
        q, k, v = layer.qkv(x, rope)
        group = q.shape[1] // k.shape[1]
        wide_k = k.repeat_interleave(group, dim=1).transpose(0, 1)
        wide_v = v.repeat_interleave(group, dim=1).transpose(0, 1)
        logits = q.transpose(0, 1) @ wide_k.transpose(1, 2) / math.sqrt(q.shape[2])
        probs = torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=-1)
        x = layer.finish(x, (probs @ wide_v).transpose(0, 1))
        keys.append(k)
        values.append(v)
    heads = model.config.num_kv_heads
    everything = [[list(range(count)) for _ in range(heads)] for _ in model.layers]
    prompt = SlowPrompt(prompt_tokens=count, keys=keys, values=values, positions=everything)
    return prompt, model.logits(x[-1:])[0]


def keep_positions(prompt: SlowPrompt, positions: list[list[list[int]]]) -> SlowPrompt:
    """The prompt with only the named positions left, per layer and KV head."""

    def gather(full: torch.Tensor, heads: list[list[int]]) -> torch.Tensor:
        return torch.stack([full[kept, head] for head, kept in enumerate(heads)], dim=1)

    return SlowPrompt(
        prompt_tokens=prompt.prompt_tokens,
        keys=[gather(k, heads) for k, heads in zip(prompt.keys, positions, strict=True)],
        values=[gather(v, heads) for v, heads in zip(prompt.values, positions, strict=True)],
        positions=positions,
    )
