"""Arms side by side: means over their runs, and how sure their ratio is."""

import statistics
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from loadtest.load.bootstrap import CONFIDENCE_PERCENT, ratio_of_means
from loadtest.page import number
from shared.errors import ConfigError

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
                name: ratio_of_means(values[name], values[base], random, paired=paired)
                for name in others
            },
        }
    return {
        "base": base,
        "confidence_percent": CONFIDENCE_PERCENT,
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
