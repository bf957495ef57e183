"""Whether two pairs gave the same answers, as far as rounding lets one say.

A pair is right at a step when it takes the slow pair's best token, or one that the slow pair finds
level with it: nearer, in natural-log probability, than rounding in the pair's dtype may move two
tokens against each other. Behind a level step that was decided otherwise the answers are of two
texts, so nothing behind it counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.pair.parity import Answer
from loadtest.pair.plan import ARMS
from shared.types.sampling import SampledToken

LEVEL: Mapping[str, float] = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.4}
"""By dtype: natural-log probabilities nearer than this are level. In 16 bits that is a little more
than one of the embedded model moves by beside float32 (0.28 in bfloat16 on an H200), of the twice
that two can move against each other.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How far one answer is the other."""

    compared: int
    """Steps before the first one at which they differ."""
    equal: bool
    """There is none, or it was level."""
    gap: float | None
    """By how much the slow pair prefers its own token at that step; None: there is none, or its
    candidates do not hold the other token."""
    drift: float
    """Largest difference of the log-probabilities of a token that both took."""


def matching(
    wanted: Sequence[SampledToken], given: Sequence[SampledToken], *, level: float
) -> Match:
    """Compares two answers.

    Args:
        wanted: the right one, with the best tokens of each step.
        given: the one in question.
        level: log-probabilities nearer than this are level.
    """
    drift = 0.0
    for step, (right, other) in enumerate(zip(wanted, given, strict=False)):
        if right.token_id != other.token_id:
            held = dict(right.top).get(other.token_id)
            gap = None if held is None else right.top[0][1] - held
            equal = gap is not None and gap < level
            return Match(compared=step, equal=equal, gap=gap, drift=drift)
        if right.logprob is not None and other.logprob is not None:
            drift = max(drift, abs(right.logprob - other.logprob))
    shorter = min(len(wanted), len(given))
    return Match(compared=shorter, equal=len(wanted) == len(given), gap=None, drift=drift)


def compare(wanted: Sequence[Answer], given: Sequence[Answer], *, level: float) -> dict[str, Any]:
    """What the answers of two pairs to one plan come to, JSON-ready: `equal`, and by arm.

    Args:
        wanted: of the pair that is right.
        given: of the one in question, in the same order.
        level: log-probabilities nearer than this are level.
    """
    rows = [_row(right, other, level=level) for right, other in zip(wanted, given, strict=True)]
    arms = {
        arm: _arm([row for row in rows if row["arm"] == arm])
        for arm in dict.fromkeys(answer.arm for answer in wanted)
    }
    return {"equal": all(arm["equal"] for arm in arms.values()), "level": level, "arms": arms}


def verdict(arm: str, found: Mapping[str, Any]) -> str:
    """One line about an arm of `compare`."""
    return (
        f"{ARMS[arm].title}: {found['steps_compared']} of {found['steps']} steps compared, "
        f"{'equal' if found['equal'] else 'NOT ALL EQUAL'}"
    )


def _arm(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shares = [row["kept_alike"] for row in rows if row["kept_alike"] is not None]
    return {
        "answers": len(rows),
        "steps_compared": sum(row["compared"] for row in rows),
        "steps": sum(row["steps"] for row in rows),
        "equal": all(row["equal"] for row in rows),
        "prompt_tokens": [row["prompt_tokens"] for row in rows],
        "kept_tokens": [row["kept_tokens"] for row in rows if row["kept_tokens"] is not None],
        "kept_alike": min(shares, default=None),
        "drift": max(row["drift"] for row in rows),
        "transports": sorted({row["transport"] for row in rows}),
        "ends": [row for row in rows if row["compared"] < row["steps"] and row["equal"]],
        "differences": [row for row in rows if not row["equal"]],
    }


def _row(wanted: Answer, given: Answer, *, level: float) -> dict[str, Any]:
    match = matching(wanted.tokens, given.tokens, level=level)
    return {
        "arm": wanted.arm,
        "topic": wanted.topic,
        "prompt_tokens": wanted.prompt_tokens,
        "kept_tokens": None if wanted.kept is None else len(wanted.kept),
        "kept_alike": _alike(wanted.kept, given.kept),
        "steps": len(wanted.tokens),
        "compared": match.compared,
        "equal": match.equal,
        "gap": match.gap,
        "drift": match.drift,
        "transport": given.transport,
    }


def _alike(wanted: frozenset[int] | None, given: frozenset[int] | None) -> float | None:
    """Share of the positions that the right pair keeps and the other keeps as well."""
    if wanted is None or given is None:
        return None
    return len(wanted & given) / len(wanted)
