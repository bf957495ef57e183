"""Attention over given slots the slow way: lists of slots for each query head, float64, no pages.

It chooses nothing itself, so it says of any policy whether the engine read what it says it read.

Shapes: N prompt slots, G KV heads, D head size.
"""

import math
from dataclasses import dataclass

import torch

from shared.model.transformer import Transformer
from tests.reference.delta_slow import SlowPrompt


@dataclass
class GivenReads:
    """One answer whose reads somebody else chooses."""

    model: Transformer
    prompt: SlowPrompt
    fed: int = 0

    def __post_init__(self) -> None:
        self.keys = [k.double() for k in self.prompt.keys]
        self.values = [v.double() for v in self.prompt.values]

    def step(self, token: int, slots: list[list[list[int]]]) -> torch.Tensor:
        """Logits after one more token, whose layers read `slots[layer][query head]`."""
        model, position = self.model, self.prompt.prompt_tokens + self.fed
        self.fed += 1
        x = model.embed(torch.tensor([token]))
        rope = model.rope(torch.tensor([position]), context_tokens=position + 1)
        for index, layer in enumerate(model.layers):
            q, k, v = layer.qkv(x, rope)
            self.keys[index] = torch.cat((self.keys[index], k.double()))
            self.values[index] = torch.cat((self.values[index], v.double()))
            group = q.shape[1] // k.shape[1]
            outs = []
            for head, chosen in enumerate(slots[index]):
                keys = self.keys[index][chosen, head // group]
                alpha = torch.softmax(keys @ q[0, head].double() / math.sqrt(q.shape[2]), dim=0)
                outs.append(alpha @ self.values[index][chosen, head // group])
            x = layer.finish(x, torch.stack(outs)[None].to(x.dtype))
        return model.logits(x)[0]
