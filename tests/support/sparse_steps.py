"""Steps of one row without a model: random queries and keys, attention in float64.

Shapes: L layers, H query heads, G KV heads, D head size, T slots, N prompt slots.
"""

from dataclasses import dataclass, field

import torch

from decode_service.sparsity.base import Evidence, RowFacts, RowPolicy, Selection
from decode_service.sparsity.layouts import KvLayout
from shared.types.kv_manifest import PositionKind

HEAD_DIM = 8


@dataclass
class FakeKv:
    """Keys of a layer that lie in one piece; writes down from which page on they were asked for."""

    keys_TGD: torch.Tensor
    asked: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Slots."""
        return self.keys_TGD.shape[0]

    def keys(self, *, first_page: int = 0) -> torch.Tensor:
        """The keys from a page on."""
        self.asked.append(first_page)
        return self.keys_TGD[16 * first_page :]


def identity_layout(slots: int) -> KvLayout:
    """A prompt that was not pruned."""
    return KvLayout(kind=PositionKind.IDENTITY, slots=slots, positions_RN=None)


def drawn_layout(rows: int, slots: int, *, prompt_tokens: int, seed: int) -> KvLayout:
    """A pruned prompt: `rows` sets of positions drawn by lot, each with the first and the last."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(rows):
        inner = torch.randperm(prompt_tokens - 2, generator=generator)[: slots - 2] + 1
        ends = torch.tensor([0, prompt_tokens - 1])
        drawn.append(torch.cat((ends, inner)).sort().values)
    kind = PositionKind.SHARED if rows == 1 else PositionKind.PER_HEAD
    return KvLayout(kind=kind, slots=slots, positions_RN=torch.stack(drawn))


def plain_facts(
    prompt_tokens: int, *, num_layers: int, num_heads: int = 4, num_kv_heads: int = 2
) -> RowFacts:
    """A row whose prompt was not pruned."""
    return RowFacts(
        prompt_tokens=prompt_tokens,
        layouts=(identity_layout(prompt_tokens),),
        layer_layouts=(0,) * num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def mixed_facts(prompt_tokens: int, *, slots: int, num_layers: int, rows: int = 2) -> RowFacts:
    """Four whole layers, then one layer of `rows` position rows, then layers of one set."""
    return RowFacts(
        prompt_tokens=prompt_tokens,
        layouts=(
            identity_layout(prompt_tokens),
            drawn_layout(rows, slots, prompt_tokens=prompt_tokens, seed=1),
            drawn_layout(1, slots, prompt_tokens=prompt_tokens, seed=2),
        ),
        layer_layouts=(0, 0, 0, 0, 1, *(2,) * (num_layers - 5)),
        num_heads=4,
        num_kv_heads=2,
    )


@dataclass
class StepInputs:
    """What the layers of one step bring."""

    queries: list[torch.Tensor]
    """[H, D] a layer."""
    kvs: list[FakeKv]


@dataclass
class StepRecord:
    """What a step did."""

    selections: list[Selection | None]
    probs: list[torch.Tensor | None]
    """[H, T] of the layers that were observed."""


def draw_inputs(facts: RowFacts, *, generated: int, seed: int) -> StepInputs:
    """Sharp random queries and keys: with flat attention every choice is as good as any."""
    generator = torch.Generator().manual_seed(seed)
    queries, kvs = [], []
    for layer in range(facts.num_layers):
        shape = (facts.length(layer, generated=generated), facts.num_kv_heads, HEAD_DIM)
        queries.append(3 * torch.randn(facts.num_heads, HEAD_DIM, generator=generator))
        kvs.append(FakeKv(torch.randn(shape, generator=generator)))
    return StepInputs(queries=queries, kvs=kvs)


def attention(q_HD: torch.Tensor, k_TGD: torch.Tensor) -> torch.Tensor:
    """Probabilities of every query head, float32 [H, T]; computed in float64."""
    wide_TH = k_TGD.double().repeat_interleave(q_HD.shape[0] // k_TGD.shape[1], dim=1)
    logits_HT = torch.einsum("hd,thd->ht", q_HD.double(), wide_TH) * q_HD.shape[1] ** -0.5
    return torch.softmax(logits_HT, dim=-1).float()


def run_step(
    row: RowPolicy, inputs: StepInputs, *, generated: int, commit: bool = True
) -> StepRecord:
    """One step, layer by layer; only layers that read everything may ask for evidence here."""
    step = row.step(generated=generated)
    record = StepRecord(selections=[], probs=[])
    for layer, (q_HD, kv) in enumerate(zip(inputs.queries, inputs.kvs, strict=True)):
        selection = step.select(layer, q_HD, kv)
        record.selections.append(selection)
        wanted = step.evidence(layer)
        probs_HT = None
        if wanted is not Evidence.NONE:
            assert selection is None, "evidence over a selection is not simulated"
            probs_HT = attention(q_HD, kv.keys_TGD)
            per_group = probs_HT.unflatten(0, (kv.keys_TGD.shape[1], -1))
            step.observe(layer, probs_HT if wanted is Evidence.PROBS else per_group.amax(dim=1))
        record.probs.append(probs_HT)
    if commit:
        step.commit()
    return record


def slots_read(selection: Selection | None, *, length: int) -> list[list[int]]:
    """Slots of each row of a selection, in reading order; every slot where there is none."""
    if selection is None:
        return [list(range(length))]
    unit = selection.unit
    return [
        [s for u in units for s in range(u * unit, min((u + 1) * unit, length))]
        for units in selection.units_RU.tolist()
    ]
