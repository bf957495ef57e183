"""Rows without a model or a cache, to put page policies to work: made-up queries and keys, true
attention over whatever a policy selects.

Shapes: H query heads, G KV heads, D head size, T slots, V slots read.
"""

from dataclasses import dataclass, field

import torch

from decode_service.sparsity.base import Evidence, RowFacts, RowPolicy, Selection
from decode_service.sparsity.layouts import KvLayout
from shared.types.kv_manifest import PositionKind

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 8
ALL_RESIDUES = 17
"""Steps after which every layer's length was 0, 1 and 15 mod 16 once."""


def mapped_layout(kind: PositionKind, *, slots: int, prompt_tokens: int, seed: int) -> KvLayout:
    """A pruned layout of random positions."""
    generator = torch.Generator().manual_seed(seed)
    rows = KV_HEADS if kind is PositionKind.PER_HEAD else 1
    drawn = [torch.randperm(prompt_tokens, generator=generator)[:slots] for _ in range(rows)]
    positions_RN = torch.stack(drawn).sort(dim=1).values
    return KvLayout(kind=kind, slots=slots, positions_RN=positions_RN)


def make_facts(kind: str, *, prompt_tokens: int, kept: int) -> RowFacts:
    """A row of 8 layers.

    Args:
        kind: `identity`; `shared`: layers 3.. hold one choice of the prompt; `layer`: layers 2..5
            a choice each and layers 6, 7 one together; `head`: the same, and KV heads apart.
        prompt_tokens: original prompt length.
        kept: prompt tokens of pruned layers.
    """
    kinds = {"shared": (0, 0, 0, 1, 1, 1, 1, 1), "identity": (0,) * LAYERS}
    layer_layouts = kinds.get(kind, (0, 0, 1, 2, 3, 4, 5, 5))
    position_kind = PositionKind.PER_HEAD if kind == "head" else PositionKind.SHARED
    whole = KvLayout(kind=PositionKind.IDENTITY, slots=prompt_tokens, positions_RN=None)
    pruned = (
        mapped_layout(position_kind, slots=kept, prompt_tokens=prompt_tokens, seed=seed)
        for seed in range(1, max(layer_layouts) + 1)
    )
    return RowFacts(
        prompt_tokens=prompt_tokens,
        layouts=(whole, *pruned),
        layer_layouts=layer_layouts,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
    )


@dataclass
class MadeUpKv:
    """Keys of one layer at one step; what was handed out before is spoilt by the next call."""

    keys_TGD: torch.Tensor
    lent: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Slots T."""
        return self.keys_TGD.shape[0]

    def keys(self, *, first_page: int = 0) -> torch.Tensor:
        """See `LayerKv.keys`."""
        if self.lent is not None:
            self.lent.fill_(torch.nan)
        self.lent = self.keys_TGD[16 * first_page :].clone()
        return self.lent


@dataclass(frozen=True)
class LayerRead:
    """What a layer read."""

    selection: Selection | None
    slots: tuple[tuple[int, ...], ...]
    """By row of the selection; all slots in one row where nothing was selected."""
    length: int
    """Slots that there are."""
    evidence: Evidence
    """What the policy was told."""

    def of_head(self, head: int) -> tuple[int, ...]:
        """Slots that a query head read."""
        return self.slots[head * len(self.slots) // HEADS]


def slots_read(selection: Selection | None, *, length: int) -> tuple[tuple[int, ...], ...]:
    """Slots of each row of a selection, in reading order, as far as they are visible."""
    if selection is None:
        return (tuple(range(length)),)
    slots_RUS = selection.units_RU[..., None] * selection.unit + torch.arange(selection.unit)
    return tuple(map(tuple, slots_RUS.flatten(1)[:, : selection.visible].tolist()))


@dataclass
class MadeUpRow:
    """Queries and keys of one row. Equal seeds give equal rows."""

    facts: RowFacts
    seed: int = 0
    steps: int = ALL_RESIDUES
    """Steps that it has keys for."""
    keys: list[torch.Tensor] = field(init=False)
    """[most slots, G, D] a layer."""

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        lengths = [
            self.facts.length(layer, generated=self.steps) for layer in range(self.facts.num_layers)
        ]
        self.keys = [
            torch.randn(length, self.facts.num_kv_heads, HEAD_DIM, generator=generator)
            for length in lengths
        ]

    @property
    def lengths(self) -> range:
        """Generated tokens at each of the steps."""
        return range(1, self.steps + 1)

    def query(self, layer: int, *, generated: int) -> torch.Tensor:
        """Query of a layer at a step, [H, D]."""
        seed = (self.seed * self.steps + generated) * self.facts.num_layers + layer
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.facts.num_heads, HEAD_DIM, generator=generator) * 1.5

    def probs(
        self, layer: int, *, generated: int, slots: tuple[tuple[int, ...], ...] | None = None
    ) -> torch.Tensor:
        """Probabilities of every head over the slots that it reads, float32 [H, V]; None: all."""
        heads, num_kv_heads = self.facts.num_heads, self.facts.num_kv_heads
        length = self.facts.length(layer, generated=generated)
        rows_RV = torch.tensor(slots) if slots is not None else torch.arange(length)[None]
        slots_HV = rows_RV.repeat_interleave(heads // rows_RV.shape[0], dim=0)
        kv_heads = torch.arange(num_kv_heads).repeat_interleave(heads // num_kv_heads)
        keys_HVD = self.keys[layer][slots_HV, kv_heads[:, None]]
        query_HD = self.query(layer, generated=generated)
        return torch.softmax((keys_HVD @ query_HD[:, :, None])[..., 0] / HEAD_DIM**0.5, dim=1)

    def step(
        self,
        row: RowPolicy,
        *,
        generated: int,
        layers: int | None = None,
        commit: bool = True,
    ) -> tuple[LayerRead, ...]:
        """Takes a policy through one step.

        Args:
            row: the policy at work on this row.
            generated: tokens of the answer that have their KV after the step.
            layers: stop after so many layers, as a step that fails; None: all.
            commit: whether the step succeeds.
        """
        step = row.step(generated=generated)
        reads = []
        for layer in range(self.facts.num_layers if layers is None else layers):
            length = self.facts.length(layer, generated=generated)
            kv = MadeUpKv(self.keys[layer][:length].clone())
            selection = step.select(layer, self.query(layer, generated=generated), kv)
            slots = slots_read(selection, length=length)
            kind = step.evidence(layer)
            if kind is not Evidence.NONE:
                probs_HV = self.probs(layer, generated=generated, slots=slots)
                step.observe(layer, self._evidence(kind, probs_HV, rows=len(slots)))
            reads.append(LayerRead(selection=selection, slots=slots, length=length, evidence=kind))
        if commit:
            step.commit()
        return tuple(reads)

    def _evidence(self, kind: Evidence, probs_HV: torch.Tensor, *, rows: int) -> torch.Tensor:
        if kind is Evidence.PROBS:
            return probs_HV
        num_kv_heads = self.facts.num_kv_heads
        assert rows in {1, num_kv_heads}, "the heads of a KV head read the same slots"
        return probs_HV.view(num_kv_heads, -1, probs_HV.shape[1]).amax(dim=1)
