"""H2O: each KV head keeps the slots that have drawn most attention so far, and the last ones.

Paper: https://arxiv.org/abs/2306.14048. A slot's weight is the sum of the probabilities that it was
given at every step that read it; a budget of 16 K slots is split between the heaviest and the most
recent, and what falls out is hidden for good. Keys keep the rotation of their original positions.

Deviations: the paper sums over the prompt's queries too, but a prefill worker ships no such sums.
So the sums begin with the first step of the answer, which reads everything and stands in for them;
selecting begins with the second. The paper knows one query head a KV head; here the probabilities
of the query heads of a KV head are summed. What is hidden is not freed.

Shapes: H query heads, G KV heads, D head size, T slots read, U slots held.
"""

from dataclasses import dataclass, field

import torch

from decode_service.sparsity.base import (
    Evidence,
    LayerKv,
    LayerRole,
    RowFacts,
    Selection,
    slot_selection,
)
from decode_service.sparsity.page_scores import best_units
from shared.kv.geometry import PAGE_SIZE
from shared.types.methods import SparsityParams


class H2oPolicy:
    """Heavy and recent slots, 16 K in all, of every KV head of every layer.

    Args:
        params: page budget K; share of it that the recent slots have.
        num_layers: decoder layers of the model.
    """

    name = "h2o"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._budget = params.page_budget * PAGE_SIZE
        self._recent = max(1, int(self._budget * params.recent_share))
        self._roles = (LayerRole.SPARSE,) * num_layers

    def begin(self, facts: RowFacts, *, force: bool = False) -> "H2oRow":
        """Takes up a row."""
        assert facts.num_layers == len(self._roles), "the policy was made for this model"
        return H2oRow(
            roles=self._roles,
            num_kv_heads=facts.num_kv_heads,
            budget=self._budget,
            recent=self._recent,
            force=force,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Slots that a layer still reads, head by head."""

    slots_GU: torch.Tensor
    """Logical slots, int64, each row ascending; the last ones of the layer are in every row."""
    sums_GU: torch.Tensor
    """Attention that each has drawn, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class H2oRow:
    """One row."""

    roles: tuple[LayerRole, ...]
    """Every layer is sparse."""
    num_kv_heads: int
    """KV heads G."""
    budget: int
    """Slots in all."""
    recent: int
    """Of them the last ones of the layer."""
    force: bool
    """Select also where nothing is hidden."""
    held: dict[int, Held] = field(default_factory=dict)
    """By layer; none before the first step has succeeded."""

    def step(self, *, generated: int) -> "H2oStep":
        """Begins a step."""
        del generated
        return H2oStep(self)

    def held_with(self, layer: int, kv: LayerKv, *, device: torch.device) -> Held:
        """The slots that a layer reads once the fed token's is among them and the rest fits."""
        before = self.held.get(layer)
        if before is None:
            slots_GU = torch.arange(kv.length, device=device).expand(self.num_kv_heads, -1)
            sums_GU = torch.zeros(slots_GU.shape, dtype=torch.float32, device=device)
            return Held(slots_GU=slots_GU, sums_GU=sums_GU)
        fed_G1 = before.slots_GU.new_full((self.num_kv_heads, 1), kv.length - 1)
        zero_G1 = before.sums_GU.new_zeros((self.num_kv_heads, 1))
        return self._fitting(
            Held(
                slots_GU=torch.cat((before.slots_GU, fed_G1), dim=1),
                sums_GU=torch.cat((before.sums_GU, zero_G1), dim=1),
            )
        )

    def _fitting(self, held: Held) -> Held:
        count = held.slots_GU.shape[1]
        if count <= self.budget:
            return held
        heavy_GU = best_units(
            held.sums_GU[:, : count - self.recent], count=self.budget - self.recent
        )
        last_U = torch.arange(count - self.recent, count, device=heavy_GU.device)
        stays_GU = torch.cat((heavy_GU, last_U.expand(self.num_kv_heads, -1)), dim=1)
        return Held(
            slots_GU=held.slots_GU.gather(1, stays_GU), sums_GU=held.sums_GU.gather(1, stays_GU)
        )


class H2oStep:
    """One step.

    Args:
        row: what it reads from and, on commit, writes to.
    """

    def __init__(self, row: H2oRow) -> None:
        self._row = row
        self._held: dict[int, Held] = {}

    def evidence(self, layer: int) -> Evidence:
        """Every layer's probabilities, also while nothing is hidden: the sums are the method."""
        del layer
        return Evidence.PROBS

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """The slots still held."""
        held = self._row.held_with(layer, kv, device=q_HD.device)
        self._held[layer] = held
        if held.slots_GU.shape[1] == kv.length and not self._row.force:
            return None
        return slot_selection(held.slots_GU)

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Adds the attention that the slots drew."""
        held = self._held[layer]
        drawn_GU = evidence.unflatten(0, (self._row.num_kv_heads, -1)).sum(dim=1)  # type: ignore[no-untyped-call]
        self._held[layer] = Held(slots_GU=held.slots_GU, sums_GU=held.sums_GU + drawn_GU)

    def commit(self) -> None:
        """Sums and hidings become the layers' memory."""
        self._row.held.update(self._held)
