"""How sure a ratio of means is: a percentile bootstrap over runs."""

import statistics
from collections.abc import Sequence
from random import Random

MIN_RUNS = 3
"""Of each arm; fewer say nothing about how much runs differ."""
CONFIDENCE_PERCENT = 95
"""Of every interval."""

_RESAMPLES = 2_000


def ratio_of_means(
    of: Sequence[float], to: Sequence[float], random: Random, *, paired: bool
) -> dict[str, float | None]:
    """Ratio of means and its interval; None where the base is 0 or runs are too few.

    Args:
        of: one figure a run.
        to: the same of the base.
        random: draws the runs.
        paired: runs at one place were made in one repeat: repeats are drawn, not runs, so that what
            a repeat did to both arms is no part of the interval.
    """
    if statistics.mean(to) == 0:
        return {"ratio": None, "low": None, "high": None}
    ratio = statistics.mean(of) / statistics.mean(to)
    if min(len(of), len(to)) < MIN_RUNS:
        return {"ratio": ratio, "low": None, "high": None}
    means = (_drawn_means(of, to, random, paired=paired) for _ in range(_RESAMPLES))
    drawn = sorted(top / bottom for top, bottom in means if bottom)
    cut = len(drawn) * (100 - CONFIDENCE_PERCENT) // 200
    return {"ratio": ratio, "low": drawn[cut], "high": drawn[-1 - cut]}


def _drawn_means(
    of: Sequence[float], to: Sequence[float], random: Random, *, paired: bool
) -> tuple[float, float]:
    if paired:
        repeats = random.choices(range(len(of)), k=len(of))
        return statistics.mean(of[n] for n in repeats), statistics.mean(to[n] for n in repeats)
    return _resampled(of, random), _resampled(to, random)


def _resampled(values: Sequence[float], random: Random) -> float:
    return statistics.mean(random.choices(values, k=len(values)))
