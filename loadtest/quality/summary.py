"""What the results say: the table of all rankers, kept answers, controls, and who is ahead.

Pure: facts in, JSON-ready rows out. A share comes with its counts, so that nobody takes 3 of 4 for
three hundred of four hundred.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.quality.store import Fact, Key, Timing, Trial

FULL, RANDOM, RECENCY, ORACLE = "full", "random", "recency", "oracle"
CONTROLS = (RANDOM, RECENCY)
NEEDLE, RULER, MIXTURE = "needle", "ruler", "mixture"
LONG_PROMPT = 2000
"""Prompts of at least so many tokens need no floor on the kept count."""
SAME_TTFT = 1.02
"""Arms whose time is within this factor count as equally fast."""
KEPT_ANSWERS, RULER_AVERAGE = "full's answers kept, 2k tokens and more", "RULER-lite"
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Share:
    """Right answers out of some prompts, with the Wilson interval of 95 %."""

    right: float
    of: int

    @property
    def value(self) -> float | None:
        """The share; None of nothing."""
        return self.right / self.of if self.of else None

    def interval(self) -> tuple[float, float]:
        """Lower and upper bound; 0 to 1 when nothing was asked."""
        if not self.of:
            return (0.0, 1.0)
        p, n = self.right / self.of, self.of
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return (max(0.0, middle - half), min(1.0, middle + half))

    def to_json(self) -> dict[str, Any]:
        """`right`, `of`, `share` and the bounds `low` and `high`."""
        low, high = self.interval()
        return {**asdict(self), "share": self.value, "low": low, "high": high}


def trials_of(facts: Iterable[Fact], part: str, *, protocol: str = "included") -> list[Trial]:
    """The trials of a part under one protocol."""
    return [
        fact
        for fact in facts
        if isinstance(fact, Trial) and fact.part == part and fact.protocol == protocol
    ]


def long_prompts(trials: Iterable[Trial]) -> list[Trial]:
    """Trials of prompts long enough that a rate alone keeps enough of them."""
    return [trial for trial in trials if trial.length >= LONG_PROMPT]


def short_prompts(trials: Iterable[Trial]) -> list[Trial]:
    """The others, which need a floor on the kept count."""
    return [trial for trial in trials if trial.length < LONG_PROMPT]


def arms_of(trials: Iterable[Trial]) -> list[tuple[str, float]]:
    """Arms and rates in the order of the table: full first, then by name, rates ascending."""
    found = {(trial.arm, trial.rate) for trial in trials}
    return sorted(found, key=lambda arm: (arm[0] != FULL, arm[0], arm[1]))


def ranker_table(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """One row for every arm and rate of the needle, RULER and mixture parts (question included)."""
    parts = {name: trials_of(facts, name) for name in (NEEDLE, RULER, MIXTURE)}
    every = [trial for trials in parts.values() for trial in trials]
    kept = kept_answers(long_prompts(parts[MIXTURE]))
    kept_short = kept_answers(short_prompts(parts[MIXTURE]))
    nothing = Share(0, 0)
    rows = []
    for arm, rate in arms_of(every):
        own = {name: _only(trials, arm, rate) for name, trials in parts.items()}
        mine = _only(every, arm, rate)
        rho = [trial.spearman for trial in mine if trial.spearman is not None]
        rows.append({
            "arm": arm,
            "rate": rate,
            "needle": {
                str(length): share.to_json() for length, share in _by_length(own[NEEDLE]).items()
            },
            "ruler": _task_average(own[RULER]),
            "first_token_kl": _mean(
                [trial.first_token_kl for trial in mine if trial.first_token_kl is not None]
            ),
            "spearman": _mean(rho),
            "kept_answers": kept.get((arm, rate), nothing).to_json(),
            "kept_answers_short": kept_short.get((arm, rate), nothing).to_json(),
            "ttft_ratio": ttft_ratio(facts, arm, rate),
            "trials": len(mine),
        })  # fmt: skip
    return rows


def kept_answers(mixture: Sequence[Trial]) -> dict[tuple[str, float], Share]:
    """How many of the prompts that full answers each arm answers as well."""
    answered = {trial.sample_key for trial in mixture if trial.arm == FULL and trial.score >= 1.0}
    counted = [t for t in mixture if t.sample_key in answered]
    return {(arm, rate): _share(_only(counted, arm, rate)) for arm, rate in arms_of(counted)}


def ttft_ratio(facts: Iterable[Fact], arm: str, rate: float) -> dict[str, dict[str, float]]:
    """Median, least and largest ratio of an arm's time to full's in the same repeat, by length."""
    return {
        str(fact.length): {
            "median": statistics.median(fact.ratio_to_full),
            "min": min(fact.ratio_to_full),
            "max": max(fact.ratio_to_full),
            "seconds": statistics.median(fact.seconds),
        }
        for fact in facts
        if isinstance(fact, Timing) and (fact.arm, fact.rate) == (arm, rate)
    }


def task_scores(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Mean score of every arm and rate on every task."""
    cells: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for trial in trials:
        cells[trial.task, trial.arm, trial.rate].append(trial.score)
    return [
        {"task": task, "arm": arm, "rate": rate, "score": _mean(scores), "prompts": len(scores)}
        for (task, arm, rate), scores in sorted(cells.items())
    ]


def not_above_random(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """Arms that do not beat random at their own rate on a task, and tasks that full cannot do.

    An arm beats random when it wins more prompts than it loses; `p` is the two-sided sign test's.
    """
    found = []
    for part in (NEEDLE, RULER, MIXTURE):
        trials = trials_of(facts, part)
        for task in sorted({trial.task for trial in trials}):
            here = [trial for trial in trials if trial.task == task]
            full = _mean([trial.score for trial in here if trial.arm == FULL])
            for arm, rate in arms_of(here):
                if arm in {FULL, RANDOM}:
                    continue
                duel = compare(here, (arm, rate), (RANDOM, rate))
                if duel["prompts"] and duel["wins"] <= duel["losses"]:
                    found.append({
                        "part": part, "task": task, "arm": arm, "rate": rate,
                        "full_score": full, **duel,
                    })  # fmt: skip
    return found


def compare(
    trials: Sequence[Trial], one: tuple[str, float], other: tuple[str, float]
) -> dict[str, Any]:
    """Prompts that `one` answers better and worse than `other`, and the sign test's p."""
    theirs = {trial.sample_key: trial.score for trial in _only(trials, *other)}
    pairs = [
        (trial.score, theirs[trial.sample_key])
        for trial in _only(trials, *one)
        if trial.sample_key in theirs
    ]
    wins = sum(a > b for a, b in pairs)
    losses = sum(a < b for a, b in pairs)
    return {"wins": wins, "losses": losses, "prompts": len(pairs), "p": sign_test(wins, losses)}


def ahead_at_equal_ttft(facts: Sequence[Fact], *, of: str) -> list[dict[str, Any]]:
    """Arms that are no slower than arm `of` and better than it, in either of two measures.

    The measures are full's answers to long prompts that are kept, and the average over RULER's
    tasks. Full and the oracle are left out: one saves nothing, the other needs the answer.
    """
    mixture = long_prompts(trials_of(facts, MIXTURE))
    ruler = trials_of(facts, RULER)
    kept = {arm: share.value or 0.0 for arm, share in kept_answers(mixture).items()}
    averages = {arm: _task_average(_only(ruler, *arm)) or 0.0 for arm in arms_of(ruler)}
    return [
        *_ahead(facts, of=of, measure=KEPT_ANSWERS, trials=mixture, scores=kept),
        *_ahead(facts, of=of, measure=RULER_AVERAGE, trials=ruler, scores=averages),
    ]


def _ahead(
    facts: Sequence[Fact],
    *,
    of: str,
    measure: str,
    trials: Sequence[Trial],
    scores: Mapping[tuple[str, float], float],
) -> list[dict[str, Any]]:
    found = []
    for mine in [key for key in scores if key[0] == of]:
        my_ttft = longest_ratio(ttft_ratio(facts, *mine))
        for theirs, score in scores.items():
            if theirs[0] in {of, FULL} or theirs[0].startswith(ORACLE):
                continue
            ttft = longest_ratio(ttft_ratio(facts, *theirs))
            if score > scores[mine] and my_ttft and ttft and ttft <= my_ttft * SAME_TTFT:
                found.append({
                    "measure": measure,
                    "rate": mine[1], "score": scores[mine], "ttft_ratio": my_ttft,
                    "ahead": {"arm": theirs[0], "rate": theirs[1], "score": score,
                              "ttft_ratio": ttft},
                    **compare(trials, theirs, mine),
                })  # fmt: skip
    return found


def longest_ratio(ratios: dict[str, dict[str, float]]) -> float | None:
    """The ratio at the longest prompt, where it says most."""
    return ratios[max(ratios, key=int)]["median"] if ratios else None


def _only(trials: Iterable[Trial], arm: str, rate: float) -> list[Trial]:
    return [trial for trial in trials if (trial.arm, trial.rate) == (arm, rate)]


def _by_length(trials: Sequence[Trial]) -> dict[int, Share]:
    lengths = sorted({trial.length for trial in trials})
    return {n: _share([trial for trial in trials if trial.length == n]) for n in lengths}


def _share(trials: Sequence[Trial]) -> Share:
    return Share(sum(trial.score for trial in trials), len(trials))


def _task_average(trials: Sequence[Trial]) -> float | None:
    """Mean over tasks of the mean score, so that a task with more prompts weighs no more."""
    scores: dict[Key, list[float]] = defaultdict(list)
    for trial in trials:
        scores[trial.task,].append(trial.score)
    return _mean([statistics.fmean(values) for values in scores.values()])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def sign_test(wins: int, losses: int) -> float:
    """Two-sided probability of a split at least this uneven if both were equally good."""
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2.0**n)
