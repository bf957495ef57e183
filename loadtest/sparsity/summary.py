"""What the results of a study say: every table and the verdicts, JSON-ready."""

from collections.abc import Sequence
from typing import Any

from loadtest.sparsity.records import ABLATION, GENERATION, LONG, TEACHER, ArmFact, SparsityFact
from loadtest.sparsity.tables import (
    ablation_table,
    forced_of,
    forced_table,
    frontier,
    generation_table,
    policy_table,
)
from loadtest.sparsity.verdicts import verdict_lines


def study_summary(facts: Sequence[SparsityFact]) -> dict[str, Any]:
    """Tables by part; `teacher` holds the needles after pruning as well."""
    return {
        TEACHER: policy_table(facts),
        LONG: forced_table(forced_of(facts, LONG)),
        GENERATION: generation_table(facts),
        ABLATION: ablation_table(facts),
        "frontier": frontier(facts),
        "arms": [_arm_row(fact) for fact in facts if isinstance(fact, ArmFact)],
        "verdicts": verdict_lines(facts),
    }


def _arm_row(fact: ArmFact) -> dict[str, Any]:
    return {
        "arm": fact.arm, "budget": fact.budget, "prefill": fact.prefill, "group": fact.group,
        "policy": fact.policy, "roles": fact.roles, "sparsity": dict(fact.sparsity),
        "pruning": dict(fact.pruning),
    }  # fmt: skip
