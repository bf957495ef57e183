"""Answers under streaming, the controls, TidalDecode and LessIsMore, the slow way.

The same plain lists and float64 attention as the slow DELTA; every query head has its own list of
slots, and its own dictionary of what it saw at each position.
"""

from dataclasses import dataclass, field

import torch

from tests.reference.control_twins import (
    PAGE,
    num_pages,
    oracle_pages,
    recent_pages,
    streaming_pages,
)
from tests.reference.delta_slow import SlowDelta
from tests.reference.slot_twins import less_is_more_slots, tidal_slots


@dataclass
class SlowRival(SlowDelta):
    """One answer; `full_layers` are those that read everything."""

    method: str = ""
    choosing_layers: tuple[int, ...] = ()
    """Full layers whose attention is noted head by head."""
    recent_slots: int = 0
    """Last slots that LessIsMore reads."""
    seen: list[dict[int, float]] = field(default_factory=list)
    """Probability by position, a dictionary a query head; begun anew at every step."""

    def step(self, token: int) -> torch.Tensor:
        """Logits after one more token."""
        model, position = self.model, self.prompt.prompt_tokens + self.fed
        self.fed += 1
        x = model.embed(torch.tensor([token]))
        rope = model.rope(torch.tensor([position]), context_tokens=position + 1)
        self.seen = [{} for _ in range(model.config.num_heads)]
        self.attended.append(0)
        for index, layer in enumerate(model.layers):
            q, k, v = layer.qkv(x, rope)
            self.keys[index] = torch.cat((self.keys[index], k.double()))
            self.values[index] = torch.cat((self.values[index], v.double()))
            for held in self.positions[index]:
                held.append(position)
            outs = []
            slots = self._slots_by_head(index, q[0].double())
            for head, read in enumerate(slots):
                out, alphas = self._attend(index, q[0].double(), read)
                outs.append(out[head])
                if index in self.choosing_layers:
                    probs = alphas[head].tolist()
                    self.seen[head] |= dict(zip(self._held(index, head), probs, strict=True))
            self.attended[-1] += len(slots[0])
            x = layer.finish(x, torch.stack(outs)[None].to(x.dtype))
        return model.logits(x)[0]

    def _held(self, layer: int, head: int) -> list[int]:
        """Positions of a layer's slots as a query head sees them."""
        heads = self.positions[layer]
        return heads[head * len(heads) // self.model.config.num_heads]

    def _slots_by_head(self, layer: int, q: torch.Tensor) -> list[list[int]]:
        total, heads = self.keys[layer].shape[0], q.shape[0]
        if layer in self.full_layers or num_pages(total) <= self.budget:
            return [list(range(total))] * heads
        if self.method in {"tidal", "less_is_more"}:
            return self._chosen_slots(layer, heads)
        if self.method == "streaming":
            pages = streaming_pages(total, budget=self.budget)
        elif self.method == "recency":
            pages = recent_pages(total, budget=self.budget)
        else:
            assert self.method == "oracle_topk"
            keys = self.keys[layer].tolist()
            pages = oracle_pages(q.tolist(), keys, budget=self.budget, recency=self.recency)
        read = [s for page in pages for s in range(page * PAGE, min((page + 1) * PAGE, total))]
        return [read] * heads

    def _chosen_slots(self, layer: int, heads: int) -> list[list[int]]:
        scores = [
            [self.seen[head].get(position, 0.0) for position in self._held(layer, head)]
            for head in range(heads)
        ]
        budget = self.budget * PAGE
        if self.method == "tidal":
            return tidal_slots(scores, budget=budget)
        return [less_is_more_slots(scores, budget=budget, recent=self.recent_slots)] * heads
