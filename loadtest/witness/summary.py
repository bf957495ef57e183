"""Do both tools see the same time to first token? A ratio, its interval, and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import mean
from typing import Any

from loadtest.load.bootstrap import CONFIDENCE_PERCENT, ratio_of_means
from loadtest.machine import commit_text
from loadtest.witness.sample import Sample

FORMAT = 1


class Verdict(StrEnum):
    """Where the interval of the ratio lies."""

    AGREES = "agrees"
    """All of it is within the bound."""
    UNDECIDED = "undecided"
    """It reaches across the bound: more repeats or a quieter machine would tell."""
    DIFFERS = "differs"
    """All of it is beyond the bound."""


EXIT_CODES = {Verdict.AGREES: 0, Verdict.DIFFERS: 1, Verdict.UNDECIDED: 10}
"""Of the process; 2 and 3 are wrong flags and settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two runs of a repeat."""

    seed: int
    """Of their requests."""
    first: str
    """Which tool began."""
    ours: Sample
    """Our run."""
    theirs: Sample
    """The witness's."""

    def to_json(self) -> dict[str, Any]:
        """Both runs and their ratio, JSON-ready."""
        return {
            "seed": self.seed,
            "first": self.first,
            "ours": self.ours.to_json(),
            "theirs": self.theirs.to_json(),
            "ratio": self.ours.p50_s / self.theirs.p50_s,
        }


def witness_summary(
    pairs: Sequence[Pair], *, within: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The verdict and all that it comes from, JSON-ready.

    The ratio is that of the mean of our p50 to the mean of theirs; its interval draws repeats.

    Args:
        pairs: three repeats or more.
        within: largest distance of the ratio from 1.
        facts: tool, server, settings, connection time and machine.
    """
    ours = [pair.ours.p50_s for pair in pairs]
    theirs = [pair.theirs.p50_s for pair in pairs]
    ratio = ratio_of_means(ours, theirs, Random(0), paired=True)
    return {
        "format": FORMAT,
        "verdict": verdict(ratio, within=within),
        "within": within,
        **facts,
        "ttft_p50": {
            "ours_s": mean(ours),
            "theirs_s": mean(theirs),
            **ratio,
            "confidence_percent": CONFIDENCE_PERCENT,
        },
        "repeats": [pair.to_json() for pair in pairs],
    }


def verdict(ratio: Mapping[str, float | None], *, within: float) -> Verdict:
    """Where the interval lies."""
    low, high = ratio["low"], ratio["high"]
    assert low is not None, "there are repeats enough, and no time is 0"
    assert high is not None, "as above"
    if 1 - within <= low and high <= 1 + within:
        return Verdict.AGREES
    beyond = high < 1 - within or low > 1 + within
    return Verdict.DIFFERS if beyond else Verdict.UNDECIDED


def table_of(summary: Mapping[str, Any]) -> str:
    """The summary for a reader."""
    tool, p50 = summary["tool"], summary["ttft_p50"]
    lines = [
        f"{'repeat':>6} {'first':>7} {'ours p50':>10} {tool['name'] + ' p50':>13} {'ratio':>7}"
    ]
    lines += [
        f"{number:>6} {row['first']:>7} {row['ours']['ttft']['p50_s']:>8.4f} s "
        f"{row['theirs']['ttft']['p50_s']:>11.4f} s {row['ratio']:>7.3f}"
        for number, row in enumerate(summary["repeats"], start=1)
    ]
    hardware = summary["hardware"]
    lines += [
        f"ours / {tool['name']} {tool['version']}: {p50['ratio']:.3f}, {p50['confidence_percent']} "
        f"% interval {p50['low']:.3f} to {p50['high']:.3f}; the bound is {summary['within']:.0%}",
        f"latest start: {_latest(summary, 'ours')} after its moment in ours, "
        f"{_latest(summary, 'theirs')} in theirs",
        f"a connection takes {summary['connect_s'] * 1000:.2f} ms: our clock has it in, theirs not",
        f"{summary['command']}",
        f"{hardware['cpu']}, {hardware['cores']} cores, load {hardware['load_average'][0]:.1f}; "
        f"commit {commit_text(summary)}",
    ]
    return "\n".join(lines)


def _latest(summary: Mapping[str, Any], tool: str) -> str:
    return f"{max(row[tool]['late']['max_s'] for row in summary['repeats']):.3f} s"
