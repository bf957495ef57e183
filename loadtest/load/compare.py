"""Arms side by side: means over their runs, and how sure their ratio is."""

import statistics
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from loadtest.page import number
from shared.errors import ConfigError

MIN_RUNS = 3
"""Of each arm; fewer say nothing about how much runs differ."""

_RESAMPLES = 2_000
_CONFIDENCE = 95
_MUST_MATCH = (
    "workload", "profile", "api", "rate", "seconds", "stages", "variation", "closed_users", "slo",
    "trace",
)  # fmt: skip


def compared(
    arms: Mapping[str, Sequence[Mapping[str, Any]]], *, paired: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Every figure of every arm, and its ratio to the first arm; JSON-ready.

    The interval is a percentile bootstrap: runs of both arms are drawn with replacement, and the
    ratio of their means is taken. It is None below `MIN_RUNS` runs of either arm.

    Args:
        arms: summaries of the runs by arm, the base first; two arms or more.
        paired: runs at one place were made in one repeat: repeats are drawn, not runs, so that what
            a repeat did to both arms is no part of the interval.
        seed: of the draws.

    Raises:
        ConfigError: too few arms, runs that offered other loads, or repeats without an arm.
    """
    if len(arms) < 2:  # noqa: PLR2004  a comparison
        raise ConfigError("one arm cannot be compared: give two or more, as NAME=RUN,RUN")
    if paired and len({len(runs) for runs in arms.values()}) > 1:
        raise ConfigError(
            "a repeat lacks an arm, so the runs make no pairs; repeat every arm alike"
        )
    _check_loads([run for runs in arms.values() for run in runs])
    figures = {name: [_figures(run) for run in runs] for name, runs in arms.items()}
    base, *others = arms
    shared = set.intersection(*(set(each) for runs in figures.values() for each in runs))
    random = Random(seed)
    rows = {}
    for metric in sorted(shared):
        values = {name: [each[metric] for each in runs] for name, runs in figures.items()}
        rows[metric] = {
            "means": {name: statistics.mean(found) for name, found in values.items()},
            "ratios": {
                name: _ratio(values[name], values[base], random, paired=paired) for name in others
            },
        }
    return {
        "base": base,
        "confidence_percent": _CONFIDENCE,
        "runs": {name: len(runs) for name, runs in arms.items()},
        "verdicts": {name: [run["verdict"] for run in runs] for name, runs in arms.items()},
        "metrics": rows,
    }


def ratio_text(ratio: Mapping[str, float | None]) -> str:
    """A ratio and its interval, as far as there are any."""
    if ratio["low"] is None:
        return number(ratio["ratio"])
    return f"{number(ratio['ratio'])} [{number(ratio['low'])}, {number(ratio['high'])}]"


def _check_loads(runs: Sequence[Mapping[str, Any]]) -> None:
    for key in _MUST_MATCH:
        found = {str(run["settings"][key]) for run in runs}
        if len(found) > 1:
            raise ConfigError(
                f"these runs offered other loads: {key} is {' and '.join(sorted(found))}; compare "
                "runs with the same flags"
            )


def _figures(run: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of one run by name; what it has none of is left out."""
    found = {"goodput_per_s": run["goodput_per_s"], "attainment": run["requests"]["attainment"]}
    found |= run["throughput"] or {}
    for name, kind in run["classes"].items():
        for measure, key in (("ttft", "p50_s"), ("ttft", "p95_s"), ("tpot", "p50_s"),
                             ("itl_max", "p95_s"), ("e2e", "p50_s")):  # fmt: skip
            found[f"{name}.{measure}_{key}"] = kind[measure][key]
    return {name: value for name, value in found.items() if value is not None}


def _ratio(
    of: Sequence[float], to: Sequence[float], random: Random, *, paired: bool
) -> dict[str, float | None]:
    """Ratio of means and its interval; None where the base is 0 or runs are too few."""
    if statistics.mean(to) == 0:
        return {"ratio": None, "low": None, "high": None}
    ratio = statistics.mean(of) / statistics.mean(to)
    if min(len(of), len(to)) < MIN_RUNS:
        return {"ratio": ratio, "low": None, "high": None}
    means = (_drawn_means(of, to, random, paired=paired) for _ in range(_RESAMPLES))
    drawn = sorted(top / bottom for top, bottom in means if bottom)
    cut = len(drawn) * (100 - _CONFIDENCE) // 200
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
