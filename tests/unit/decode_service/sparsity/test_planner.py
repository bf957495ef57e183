"""What Δ-layers see, whom they choose for, and when nothing is chosen at all."""

import pytest
import torch

from decode_service.sparsity.base import Evidence, LayerRole, RowFacts, Selection, slot_selection
from decode_service.sparsity.planner import PlannedRow, layer_roles
from tests.support.policy_rows import HEADS, KV_HEADS, MadeUpRow, make_facts

ROLES = layer_roles((0, 1, 4), num_layers=8)
"""Δ-layers 1 and 4."""


class BestSlot:
    """Chooses the fed token's slot and each row's best other one, and writes down its scores."""

    def __init__(self, *, evidence: Evidence, rows: int, budget: int) -> None:
        self.evidence = evidence
        self.scores: list[torch.Tensor] = []
        self._rows = rows
        self._budget = budget

    def board_rows(self, facts: RowFacts) -> int:
        del facts
        return self._rows

    def covers(self, length: int) -> bool:
        return length <= self._budget

    def choose(self, scores_ST: torch.Tensor) -> Selection:
        self.scores.append(scores_ST.clone())
        best_S1 = scores_ST[:, :-1].argmax(dim=1, keepdim=True)
        last_S1 = torch.full_like(best_S1, scores_ST.shape[1] - 1)
        return slot_selection(torch.cat((best_S1, last_S1), dim=1))


def chooser(*, rows: int = 1, budget: int = 16, evidence: Evidence = Evidence.SCORES) -> BestSlot:
    return BestSlot(evidence=evidence, rows=rows, budget=budget)


def planned(row: MadeUpRow, method: BestSlot, *, force: bool = False) -> PlannedRow:
    return PlannedRow(facts=row.facts, roles=ROLES, chooser=method, force=force)


def test_layers_of_one_layout_and_one_planner_share_one_choice() -> None:
    row = MadeUpRow(make_facts("layer", prompt_tokens=50, kept=30))
    method = chooser()
    reads = row.step(planned(row, method), generated=1)
    # Layers 2 and 3 hold a choice of their own each, so does 5; 6 and 7 hold one together.
    assert len(method.scores) == 4
    assert reads[6].selection is reads[7].selection
    assert reads[2].selection is not reads[3].selection


def test_a_later_planner_chooses_anew_for_the_same_layout() -> None:
    row = MadeUpRow(make_facts("identity", prompt_tokens=50, kept=50))
    method = chooser()
    reads = row.step(planned(row, method), generated=1)
    assert len(method.scores) == 2
    assert reads[2].selection is reads[3].selection
    assert reads[5].selection is reads[7].selection
    for scores, layer in zip(method.scores, (1, 4), strict=True):
        assert torch.equal(scores[0], row.probs(layer, generated=1).amax(dim=0))


@pytest.mark.parametrize("kind", ["identity", "shared", "layer", "head"])
@pytest.mark.parametrize(
    ("rows", "evidence"),
    [
        (1, Evidence.SCORES),
        (1, Evidence.PROBS),
        (KV_HEADS, Evidence.SCORES),
        (KV_HEADS, Evidence.PROBS),
        (HEADS, Evidence.PROBS),
    ],
)
def test_scores_come_with_a_row_for_each_of_the_heads_that_choose_apart(
    kind: str, rows: int, evidence: Evidence
) -> None:
    row = MadeUpRow(make_facts(kind, prompt_tokens=50, kept=30))
    method = chooser(rows=rows, evidence=evidence)
    row.step(planned(row, method), generated=3)
    for scores in method.scores:
        apart = kind == "head" and rows == 1
        assert scores.shape[0] == (KV_HEADS if apart else rows)


def test_evidence_is_asked_of_choosing_layers_alone() -> None:
    row = MadeUpRow(make_facts("identity", prompt_tokens=50, kept=50))
    reads = row.step(planned(row, chooser(evidence=Evidence.PROBS)), generated=1)
    wanted = [read.evidence is Evidence.PROBS for read in reads]
    assert wanted == [role is LayerRole.DELTA for role in ROLES]


def test_nothing_is_asked_or_chosen_where_the_budget_covers_every_layer() -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=50, kept=30))
    method = chooser(budget=51)
    reads = row.step(planned(row, method), generated=1)
    assert all(read.selection is None for read in reads)
    assert all(read.evidence is Evidence.NONE for read in reads)
    assert not method.scores


def test_a_layer_that_serves_only_covered_layers_is_not_asked() -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=50, kept=30))
    reads = row.step(planned(row, chooser(budget=50)), generated=1)
    # Layer 2 holds 51 slots and reads a choice; the layers after layer 4 hold 31.
    assert [layer for layer, read in enumerate(reads) if read.selection is not None] == [2]
    asked = [layer for layer, read in enumerate(reads) if read.evidence is not Evidence.NONE]
    assert asked == [1]


def test_an_early_planner_is_asked_for_the_sake_of_layers_after_a_later_one() -> None:
    facts = make_facts("shared", prompt_tokens=50, kept=30)
    mixed = RowFacts(
        prompt_tokens=50,
        layouts=facts.layouts,
        layer_layouts=(0, 0, 1, 1, 1, 0, 0, 0),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
    )
    row = MadeUpRow(mixed)
    method = chooser(budget=40)
    reads = row.step(planned(row, method), generated=1)
    asked = [layer for layer, read in enumerate(reads) if read.evidence is not Evidence.NONE]
    assert asked == [1, 4]
    # What layer 4 does not hold keeps the score that layer 1 gave it.
    kept = facts.layouts[1].positions_RN
    assert kept is not None
    wanted = row.probs(1, generated=1).amax(dim=0)
    wanted[torch.cat((kept[0], torch.tensor([50])))] = row.probs(4, generated=1).amax(dim=0)
    assert torch.equal(method.scores[-1][0], wanted)


def test_force_chooses_where_the_budget_covers_everything() -> None:
    row = MadeUpRow(make_facts("shared", prompt_tokens=50, kept=30))
    reads = row.step(planned(row, chooser(budget=1000), force=True), generated=1)
    for role, read in zip(ROLES, reads, strict=True):
        assert (read.selection is not None) is (role is LayerRole.SPARSE)
