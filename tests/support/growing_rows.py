"""A row that grows: random keys that stay, queries by step, attention over what is read.

Shapes: H query heads, G KV heads, D head size, T slots.
"""

from dataclasses import dataclass, field

import torch

from decode_service.sparsity.base import Evidence, RowFacts, RowPolicy, Selection
from tests.support.sparse_steps import HEAD_DIM, FakeKv, slots_read


@dataclass
class GrowingRow:
    """Keys and queries of a row that any number of policies may be led through.

    Both depend on the seed, the layer and the step alone.
    """

    facts: RowFacts
    steps: int
    """Steps that there are keys for."""
    seed: int = 0
    keys: list[torch.Tensor] = field(init=False)
    """[T, G, D] a layer, after the last step."""
    asked: list[list[int]] = field(init=False)
    """First pages that were asked for, layer by layer."""

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        layers = range(self.facts.num_layers)
        lengths = [self.facts.length(layer, generated=self.steps) for layer in layers]
        shape = (self.facts.num_kv_heads, HEAD_DIM)
        self.keys = [torch.randn(length, *shape, generator=generator) for length in lengths]
        self.asked = [[] for _ in layers]

    def query(self, layer: int, generated: int) -> torch.Tensor:
        """Sharp query [H, D] of a layer at a step; neighbours in time are alike, as in a text."""
        drawn = [
            torch.randn(
                self.facts.num_heads,
                HEAD_DIM,
                generator=torch.Generator().manual_seed(1000 * self.seed + 100 * layer + part),
            )
            for part in (generated // 8, generated + 40)
        ]
        return 2 * drawn[0] + drawn[1]

    def kv(self, layer: int, generated: int) -> FakeKv:
        """Keys of a layer at a step."""
        length = self.facts.length(layer, generated=generated)
        return FakeKv(self.keys[layer][:length], self.asked[layer])

    def step(
        self,
        policy: RowPolicy,
        generated: int,
        *,
        queries_of: int | None = None,
        commit: bool = True,
    ) -> list[list[list[int]]]:
        """Leads a policy through a step.

        Args:
            policy: the policy at work on this row.
            generated: the step.
            queries_of: another step whose queries are used.
            commit: whether the step succeeds.

        Returns:
            Slots read, by layer and row of the selection; one row where everything is read.
        """
        step = policy.step(generated=generated)
        read = []
        for layer in range(self.facts.num_layers):
            q_HD = self.query(layer, generated if queries_of is None else queries_of)
            kv = self.kv(layer, generated)
            selection = step.select(layer, q_HD, kv)
            if step.evidence(layer) is Evidence.PROBS:
                step.observe(layer, probs_read(q_HD, kv.keys_TGD, selection))
            read.append(slots_read(selection, length=kv.length))
        if commit:
            step.commit()
        return read


def probs_read(
    q_HD: torch.Tensor, keys_TGD: torch.Tensor, selection: Selection | None
) -> torch.Tensor:
    """Probabilities of every query head over the slots that its row reads, [H, T]."""
    num_heads, group = q_HD.shape[0], q_HD.shape[0] // keys_TGD.shape[1]
    rows = slots_read(selection, length=keys_TGD.shape[0])
    probs = []
    for head in range(num_heads):
        slots = rows[head * len(rows) // num_heads]
        logits_T = keys_TGD[slots, head // group] @ q_HD[head] * q_HD.shape[1] ** -0.5
        probs.append(torch.softmax(logits_T, dim=0))
    return torch.stack(probs)
