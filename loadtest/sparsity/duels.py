"""Two arms on the same texts and questions: which one is closer to dense, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.quality.summary import sign_test
from loadtest.sparsity.intervals import mean_interval
from loadtest.sparsity.records import ForcedFact, NeedleFact

AHEAD, BEHIND, LEVEL = "ahead", "behind", "not told apart"
_CERTAIN = 0.05
_ALIKE = 1.5
"""Reads within this factor count as alike; policies differ in how many layers they leave dense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """One arm against another by one measure."""

    verdict: str
    """Of the first arm: ahead, behind, or not told apart."""
    text: str
    """Both values, and how sure the difference is."""


def closeness(mine: Sequence[ForcedFact], theirs: Sequence[ForcedFact]) -> Duel | None:
    """KL from dense, block by block, with the agreement beside it; None if they share no text."""
    other = {fact.sample_key: fact for fact in theirs}
    pairs = [(fact, other[fact.sample_key]) for fact in mine if fact.sample_key in other]
    if not pairs:
        return None
    gaps = [a - b for f, g in pairs for a, b in zip(f.kl_blocks, g.kl_blocks, strict=True)]
    ours, rivals = [f for f, _ in pairs], [g for _, g in pairs]
    read = sum(f.attended for f in ours) / sum(g.attended for g in rivals)
    text = (
        f"KL {_weighted(ours, 'kl'):.4f} against {_weighted(rivals, 'kl'):.4f}, agreement "
        f"{_weighted(ours, 'agreement'):.1%} against {_weighted(rivals, 'agreement'):.1%}, reads "
        f"{read:.2f} times as much{_at_equal_reads(read)}"
    )
    return Duel(verdict=_by_bounds(mean_interval(gaps)), text=text)


def answers(mine: Sequence[NeedleFact], theirs: Sequence[NeedleFact]) -> Duel | None:
    """Right answers to shared questions, by the sign test.

    None if they share none, or if both read everything in all of them.
    """
    other = {fact.sample_key: fact for fact in theirs}
    pairs = [(fact, other[fact.sample_key]) for fact in mine if fact.sample_key in other]
    if all(fact.attended == fact.dense_attended for pair in pairs for fact in pair):
        return None
    wins = sum(f.right and not g.right for f, g in pairs)
    losses = sum(g.right and not f.right for f, g in pairs)
    p = sign_test(wins, losses)
    verdict = LEVEL if p > _CERTAIN else AHEAD if wins > losses else BEHIND
    right = sum(f.right for f, _ in pairs), sum(g.right for _, g in pairs)
    return Duel(
        verdict=verdict,
        text=f"{right[0]} right answers against {right[1]} of {len(pairs)} (p = {p:.2g})",
    )


def _at_equal_reads(ratio: float) -> str:
    """A warning where a budget did not make the reads alike."""
    return "" if 1 / _ALIKE <= ratio <= _ALIKE else ", not at equal reads"


def _weighted(facts: Sequence[ForcedFact], name: str) -> float:
    total = sum(fact.scored for fact in facts)
    return float(sum(getattr(fact, name) * fact.scored for fact in facts) / total)


def _by_bounds(bounds: list[float] | None) -> str:
    """A divergence that is surely smaller is ahead."""
    if bounds is None or bounds[0] <= 0.0 <= bounds[1]:
        return LEVEL
    return AHEAD if bounds[1] < 0.0 else BEHIND
