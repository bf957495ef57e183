"""The results in words: who is ahead at equal budget, which layout mode, which targets are met.

Every line names its figures, so that a reader can disagree.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from loadtest.sparsity.duels import AHEAD, BEHIND, LEVEL, Duel, answers, closeness
from loadtest.sparsity.records import (
    ABLATION,
    DENSE,
    FULL,
    LONG,
    NEEDLE,
    PRUNED,
    TEACHER,
    WHOLE,
    ForcedFact,
    NeedleFact,
    SparsityFact,
)
from loadtest.sparsity.tables import (
    ablation_table,
    forced_of,
    frontier,
    generation_table,
    needles_of,
    policy_table,
)

_F = TypeVar("_F", ForcedFact, NeedleFact)

ArmName = tuple[str, int]
"""Label and budget."""

DELTA, RANDOM, ORACLE = "delta", "random", "oracle_topk"
TARGET_AGREEMENT, TARGET_KL, TARGET_TOKENS = 0.94, 0.015, 1024
BEST_AGREEMENT = 0.96
TARGET_LOGPROB_LOSS = 0.03
TARGET_DEVIATION = 0.03
_BESIDE_RANDOM = {BEHIND: "behind", LEVEL: "not surely ahead of"}


def verdict_lines(facts: Sequence[SparsityFact]) -> list[str]:
    """One line a question that the results can answer."""
    return [
        *against_rivals(facts),
        *not_above_random(facts),
        *layout_mode(facts),
        *targets(facts),
        *formula(facts),
    ]


def against_rivals(facts: Sequence[SparsityFact]) -> list[str]:
    """DELTA against every other policy at each budget."""
    lines = []
    budgets = sorted({budget for arm, budget in _policies(facts) if arm == DELTA})
    for budget in budgets:
        for rival in sorted({arm for arm, tokens in _policies(facts) if tokens == budget}):
            said = [
                f"{what}: {duel.verdict} ({duel.text})"
                for what, duel in _duels(facts, (DELTA, budget), (rival, budget)).items()
            ]
            if rival != DELTA and said:
                bound = " (a bound, not a rival)" if rival == ORACLE else ""
                lines.append(f"{budget} tokens, delta against {rival}{bound}: {'; '.join(said)}")
    return lines


def not_above_random(facts: Sequence[SparsityFact]) -> list[str]:
    """Policies that a choice by lot equals at their own budget."""
    drawn = [budget for arm, budget in _policies(facts) if arm == RANDOM]
    lines = [
        f"{arm} at {budget} tokens is {_BESIDE_RANDOM[duel.verdict]} random on {what}: {duel.text}"
        for arm, budget in sorted(_policies(facts))
        if arm != RANDOM and budget in drawn
        for what, duel in _duels(facts, (arm, budget), (RANDOM, budget)).items()
        if duel.verdict != AHEAD
    ]
    return lines if lines or not drawn else ["every policy is ahead of random at its budget"]


def layout_mode(facts: Sequence[SparsityFact]) -> list[str]:
    """Layout modes by answers, then by divergence from dense over the whole prompt."""
    rows = [row for row in ablation_table(facts) if row["group"] == "layout"]
    if not rows:
        return []
    ranked = sorted(rows, key=_layout_rank)
    best = ranked[0]
    lines = [
        f"layout {_mode(row)}: {_answers(row)}, KL to the unpruned {row['kl_full']:.4f}, "
        f"agreement {row['agreement_full']:.1%}, reads {1 / row['reduction_of_unpruned']:.1%}"
        for row in ranked
    ]
    needles = [fact for fact in needles_of(facts, ABLATION) if fact.group == "layout"]
    level = [
        _mode(row)
        for row in ranked[1:]
        if (duel := answers(_of_row(needles, best), _of_row(needles, row)))
        and duel.verdict == LEVEL
    ]
    apart = f"; not told apart from it by answers: {', '.join(level)}" if level else ""
    return [*lines, f"the table supports {_mode(best)}{apart}"]


def targets(facts: Sequence[SparsityFact]) -> list[str]:
    """The figures that the embedded model is held to."""
    lines = [
        f"target of {TARGET_AGREEMENT:.0%} and KL {TARGET_KL} at {TARGET_TOKENS} tokens "
        f"{_met(row['agreement']['share'] >= TARGET_AGREEMENT and row['kl'] <= TARGET_KL)}: "
        f"agreement {row['agreement']['share']:.1%}, KL {row['kl']:.4f}"
        for row in policy_table(facts)
        if row["arm"] == DELTA and row["budget"] == TARGET_TOKENS and "kl" in row
    ]
    lines += _best_configuration(facts)
    lines += [
        f"target of {TARGET_LOGPROB_LOSS} nats a token over {row['tokens']} tokens "
        f"{_met(row['logprob_loss'] <= TARGET_LOGPROB_LOSS)}: {row['arm']} loses "
        f"{row['logprob_loss']:.4f}; first end of text at {row['eos_at']}, dense's at "
        f"{row['dense_eos_at']}"
        for row in generation_table(facts)
        if row["arm"] != DENSE and row["logprob_loss"] is not None
    ]
    return lines


def formula(facts: Sequence[SparsityFact]) -> list[str]:
    """Token-layers read against the formula."""
    known = [
        fact
        for fact in facts
        if isinstance(fact, ForcedFact) and fact.formula_deviation is not None
    ]
    if not known:
        return []
    far = [fact for fact in known if abs(fact.formula_deviation or 0.0) > TARGET_DEVIATION]
    worst = max(known, key=lambda fact: abs(fact.formula_deviation or 0.0))
    lines = [
        f"token-layers read are within {TARGET_DEVIATION:.0%} of the formula in "
        f"{len(known) - len(far)} of {len(known)} measurements; farthest: {worst.arm} at "
        f"{worst.budget} tokens, {worst.formula_deviation:+.2%}"
    ]
    named = sorted({(fact.arm, fact.budget, fact.formula_deviation or 0.0) for fact in far})
    return lines + [f"{arm} at {budget} tokens is {gap:+.1%} off" for arm, budget, gap in named]


def _best_configuration(facts: Sequence[SparsityFact]) -> list[str]:
    """The closest to dense at no more than the profile's reads, the profile's own among them."""
    own = [
        fact
        for fact in forced_of(facts, TEACHER)
        if (fact.arm, fact.budget, fact.prefill) == (DELTA, TARGET_TOKENS, WHOLE)
    ]
    if not own:
        return []
    read = sum(f.attended for f in own) / sum(f.dense_attended for f in own)
    profile = {
        "arm": "the profile's over the teacher's texts",
        "budget": TARGET_TOKENS,
        "agreement": statistics.fmean(fact.agreement for fact in own),
        "kl": statistics.fmean(fact.kl for fact in own),
        "read": read,
    }
    # Texts of the ablations may be shorter: a percent of slack for the lengths.
    within = [point for point in frontier(facts) if point["read"] <= read * 1.01]
    best = max([profile, *within], key=lambda point: float(point["agreement"]))
    return [
        f"target of {BEST_AGREEMENT:.0%} at no more than {read:.1%} of dense's reads "
        f"{_met(best['agreement'] >= BEST_AGREEMENT)}: best is {best['arm']} at "
        f"{best['budget']} tokens ({best['agreement']:.1%}, KL {best['kl']:.4f}, reads "
        f"{best['read']:.1%})"
    ]


def _policies(facts: Iterable[SparsityFact]) -> set[ArmName]:
    """Every policy and budget that was measured against others."""
    return {
        (fact.arm, fact.budget)
        for fact in facts
        if isinstance(fact, ForcedFact | NeedleFact)
        and fact.part in {TEACHER, LONG, NEEDLE}
        and fact.arm not in {DENSE, FULL}
    }


def _duels(facts: Sequence[SparsityFact], one: ArmName, other: ArmName) -> dict[str, Duel]:
    """What two policies may be compared by."""
    forced = {"prose": forced_of(facts, TEACHER), "long texts": forced_of(facts, LONG)}
    found: dict[str, Duel | None] = {
        what: closeness(_of(texts, one), _of(texts, other)) for what, texts in forced.items()
    }
    for prefill, what in {PRUNED: "needles after pruning", WHOLE: "needles"}.items():
        asked = [fact for fact in needles_of(facts, NEEDLE) if fact.prefill == prefill]
        found[what] = answers(_of(asked, one), _of(asked, other))
    return {what: duel for what, duel in found.items() if duel is not None}


def _of(facts: Iterable[_F], arm: ArmName) -> list[_F]:
    return [fact for fact in facts if (fact.arm, fact.budget) == arm]


def _of_row(facts: Iterable[NeedleFact], row: dict[str, Any]) -> list[NeedleFact]:
    wanted = (row["arm"], row["budget"], row["prefill"])
    return [fact for fact in facts if (fact.arm, fact.budget, fact.prefill) == wanted]


def _met(met: bool) -> str:  # noqa: FBT001  a word for a truth value
    return "met" if met else "missed"


def _layout_rank(row: dict[str, Any]) -> tuple[float, float]:
    needle = row["needle"]
    share = needle["of_full"]["share"] if needle else None
    return (-(share or 0.0), row["kl_full"])


def _mode(row: dict[str, Any]) -> str:
    return f"{row['prefill'].partition('/')[2]} with {row['arm'].partition('=')[2]}"


def _answers(row: dict[str, Any]) -> str:
    needle = row["needle"]
    if not needle:
        return "no needles"
    return f"{needle['of_full']['right']} of {needle['of_full']['of']} answers of full"
