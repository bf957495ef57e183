"""Tables of a study's results, as JSON-ready rows; `verdicts.py` puts them into words.

Pure: facts in, rows out. Means over texts come with their spread, shares with their counts.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from loadtest.quality.summary import Share
from loadtest.sparsity.intervals import mean_interval
from loadtest.sparsity.records import (
    ABLATION,
    DENSE,
    FULL,
    NEEDLE,
    PRUNED,
    TEACHER,
    WHOLE,
    ArmFact,
    ForcedFact,
    GenerationFact,
    NeedleFact,
    SparsityFact,
)
from shared.kv.geometry import PAGE_SIZE

_F = TypeVar("_F")
_K = TypeVar("_K")

ArmKey = tuple[str, str, int, str]
"""Group, arm, budget and prefill: the order of tables."""


def policy_table(facts: Sequence[SparsityFact]) -> list[dict[str, Any]]:
    """One row for each policy and budget: teacher-forced figures, and needles.

    `needle` is after pruning, `needle_whole` over the whole prompt.
    """
    asked = needle_table(needles_of(facts, NEEDLE))
    needles = {(row["arm"], row["budget"], row["prefill"]): row for row in asked}
    rows = forced_table(forced_of(facts, TEACHER))
    known = {(row["arm"], row["budget"]) for row in rows}
    names = dict.fromkeys((row["arm"], row["budget"]) for row in asked)
    rows += [
        {"arm": name, "budget": tokens} for name, tokens in names if (name, tokens) not in known
    ]
    for row in rows:
        name = (row["arm"], row["budget"])
        row["needle"] = needles.get((*name, PRUNED))
        row["needle_whole"] = needles.get((*name, WHOLE))
    return rows


def forced_table(facts: Iterable[ForcedFact]) -> list[dict[str, Any]]:
    """One row for each kind of text and arm, means over its texts."""
    cells = _cells(facts, lambda fact: (fact.text, *_arm_key(fact)))
    return [
        {
            "text": text,
            "group": group,
            "arm": arm,
            "budget": budget,
            "prefill": prefill,
            **forced_figures(cell),
        }
        for (text, group, arm, budget, prefill), cell in sorted(cells.items())
    ]


def forced_figures(cell: Sequence[ForcedFact]) -> dict[str, Any]:
    """Means over texts; `spread` gives the least and largest text, `kl_median` is over blocks."""
    scored = sum(fact.scored for fact in cell)
    agreed = sum(round(fact.agreement * fact.scored) for fact in cell)
    expected = sum(fact.expected_attended for fact in cell)
    attended = sum(fact.attended for fact in cell)
    return {
        "texts": len(cell),
        "scored": scored,
        "kl": _mean(cell, lambda fact: fact.kl),
        "kl_interval": mean_interval([value for fact in cell for value in fact.kl_blocks]),
        "kl_median": statistics.median([value for fact in cell for value in fact.kl_blocks]),
        "kl_spread": _spread(cell, lambda fact: fact.kl),
        "kl_p95": _mean(cell, lambda fact: fact.kl_p95),
        "agreement": Share(agreed, scored).to_json(),
        "agreement_spread": _spread(cell, lambda fact: fact.agreement),
        "kl_full": _mean(cell, lambda fact: fact.kl_full),
        "agreement_full": _mean(cell, lambda fact: fact.agreement_full),
        "accuracy": _mean(cell, lambda fact: fact.accuracy),
        "dense_accuracy": _mean(cell, lambda fact: fact.dense_accuracy),
        "logprob": _mean(cell, lambda fact: fact.logprob),
        "logprob_loss": _mean(cell, lambda fact: fact.dense_logprob - fact.logprob),
        "reduction": sum(fact.dense_attended for fact in cell) / attended,
        "reduction_of_unpruned": sum(fact.unpruned_attended for fact in cell) / attended,
        "formula_deviation": attended / expected - 1.0 if expected else None,
        "layer_recall": _layer_means([fact.layer_recall for fact in cell]),
        "recall": _known_mean(v for fact in cell for v in fact.layer_recall),
        "recall_p10": _known_mean(fact.recall_p10 for fact in cell),
        "recency_share": _known_mean(fact.recency_share for fact in cell),
        "churn": _known_mean(fact.churn for fact in cell),
        "seconds": _mean(cell, lambda fact: fact.seconds),
    }


def needle_table(facts: Sequence[NeedleFact]) -> list[dict[str, Any]]:
    """One row for each arm: answers among those of full, and among those of dense as well.

    `of_full` counts questions that full answers, `of_dense` those that dense decode over the same
    prefill answers too, `by_task` the latter by task.
    """
    right = {(fact.sample_key, fact.arm, fact.prefill) for fact in facts if fact.right}
    full = {sample for sample, arm, _ in right if arm == FULL}
    rows = []
    cells = _cells([fact for fact in facts if fact.sample_key in full], _arm_key)
    for (group, arm, budget, prefill), cell in sorted(cells.items()):
        both = [fact for fact in cell if (fact.sample_key, DENSE, prefill) in right]
        tasks = _cells(both, lambda fact: fact.task)
        rows.append({
            "group": group, "arm": arm, "budget": budget, "prefill": prefill,
            "of_full": answered(cell).to_json(), "of_dense": answered(both).to_json(),
            "by_task": {task: answered(own).to_json() for task, own in sorted(tasks.items())},
            "kl": _mean(cell, lambda fact: fact.kl),
            "reduction": sum(fact.dense_attended for fact in cell)
            / max(1, sum(fact.attended for fact in cell)),
        })  # fmt: skip
    return rows


def generation_table(facts: Iterable[SparsityFact]) -> list[dict[str, Any]]:
    """One row for each generation; `logprob_loss` is what it loses to dense's own, in nats."""
    found = [fact for fact in facts if isinstance(fact, GenerationFact)]
    own = {_generation_key(fact): fact for fact in found if fact.arm == DENSE}
    rows = []
    for fact in found:
        dense = own.get(_generation_key(fact))
        rows.append({
            "text": fact.text, "context": fact.context, "seed": fact.seed, "arm": fact.arm,
            "temperature": fact.temperature, "budget": fact.budget, "tokens": fact.tokens,
            "logprob": fact.logprob, "logprob_curve": fact.logprob_curve,
            "logprob_loss": None if dense is None else dense.logprob - fact.logprob,
            "agreement": fact.agreement, "kl": fact.kl, "eos_at": fact.eos_at,
            "dense_eos_at": None if dense is None else dense.eos_at,
            "diverges_at": fact.diverges_at, "distinct": fact.distinct,
            "reduction": fact.dense_attended / fact.attended if fact.attended else None,
        })  # fmt: skip
    return rows


def ablation_table(facts: Sequence[SparsityFact]) -> list[dict[str, Any]]:
    """One row for each arm of the ablations, with needles where it has them."""
    needles = {
        (row["group"], row["arm"], row["budget"], row["prefill"]): row
        for row in needle_table(needles_of(facts, ABLATION))
    }
    rows = forced_table(forced_of(facts, ABLATION))
    for row in rows:
        key = (row["group"], row["arm"], row["budget"], row["prefill"])
        row["needle"] = needles.get(key)
        row["mean_pages"] = None if row["arm"] == DENSE else _mean_pages(facts, key)
    return rows


def frontier(facts: Sequence[SparsityFact]) -> list[dict[str, Any]]:
    """Agreement against token-layers read, of every ablation arm over a whole prefill.

    `best` marks those that no arm beats in both.
    """
    cells = _cells(
        [
            fact
            for fact in forced_of(facts, ABLATION)
            if fact.prefill == WHOLE and fact.arm != DENSE
        ],
        _arm_key,
    )
    points: list[dict[str, Any]] = [
        {
            "group": group, "arm": arm, "budget": budget,
            "read": sum(fact.attended for fact in cell)
            / sum(fact.dense_attended for fact in cell),
            "agreement": _mean(cell, lambda fact: fact.agreement),
            "kl": _mean(cell, lambda fact: fact.kl),
        }
        for (group, arm, budget, _), cell in sorted(cells.items())
    ]  # fmt: skip
    for point in points:
        point["best"] = not any(
            other["read"] <= point["read"]
            and other["agreement"] >= point["agreement"]
            and (other["read"], other["agreement"]) != (point["read"], point["agreement"])
            for other in points
        )
    return sorted(points, key=lambda point: point["read"])


def answered(facts: Sequence[NeedleFact]) -> Share:
    """Right answers."""
    return Share(sum(fact.right for fact in facts), len(facts))


def _mean_pages(facts: Sequence[SparsityFact], key: tuple[str, str, int, str]) -> float | None:
    """Pages that a sparse layer read on average, where the roles of the arm are known."""
    group, arm, budget, prefill = key
    roles = next(
        (
            fact.roles
            for fact in facts
            if isinstance(fact, ArmFact)
            and (fact.group, fact.arm, fact.budget, fact.prefill) == (group, arm, budget, prefill)
        ),
        "",
    )
    cell = [fact for fact in forced_of(facts, ABLATION) if _arm_key(fact) == key]
    sparse = roles.count("S")
    if not sparse or prefill != WHOLE:
        return None
    # Layers that read everything take the same part of dense's reads each.
    full = sum(fact.dense_attended for fact in cell) * (len(roles) - sparse) / len(roles)
    steps = sum(fact.steps for fact in cell)
    return (sum(fact.attended for fact in cell) - full) / sparse / steps / PAGE_SIZE


def forced_of(facts: Iterable[SparsityFact], part: str) -> list[ForcedFact]:
    """Forced texts of a part."""
    return [fact for fact in facts if isinstance(fact, ForcedFact) and fact.part == part]


def needles_of(facts: Iterable[SparsityFact], part: str) -> list[NeedleFact]:
    """Needle questions of a part."""
    return [fact for fact in facts if isinstance(fact, NeedleFact) and fact.part == part]


def _arm_key(fact: ForcedFact | NeedleFact) -> ArmKey:
    return (fact.group, fact.arm, fact.budget, fact.prefill)


def _generation_key(fact: GenerationFact) -> tuple[str, int, int, float, int]:
    return (fact.text, fact.context, fact.seed, fact.temperature, fact.tokens)


def _cells(facts: Iterable[_F], key: Callable[[_F], _K]) -> dict[_K, list[_F]]:
    found: dict[_K, list[_F]] = defaultdict(list)
    for fact in facts:
        found[key(fact)].append(fact)
    return found


def _mean(cell: Sequence[_F], value: Callable[[_F], float]) -> float:
    return statistics.fmean(value(fact) for fact in cell)


def _spread(cell: Sequence[_F], value: Callable[[_F], float]) -> list[float]:
    values = [value(fact) for fact in cell]
    return [min(values), max(values)]


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _layer_means(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [_known_mean(values) for values in zip(*curves, strict=True)]
