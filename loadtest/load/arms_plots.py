"""Figures of several arms. Needs matplotlib."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from loadtest.figures import MARKERS, panel_figure
from loadtest.load.histogram import Histogram
from loadtest.load.plots import legend

_WIDTH, _HEIGHT = 5.0, 3.4
_SHOWN = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "e2e_p50_s")


def distributions(arms: Mapping[str, Any], kind: str) -> Figure:
    """Shares of a class's finished requests by TTFT and by TPOT, a line an arm, all repeats."""
    figure, (left, right) = panel_figure(2, width=_WIDTH, height=_HEIGHT)
    for panel, measure in ((left, "ttft"), (right, "tpot")):
        for arm in arms.values():
            found = arm["classes"][kind]
            values, shares = Histogram.from_json(found[measure]["histogram"]).steps()
            if values:
                panel.step(values, shares, where="post", label=arm["title"])
        slo = next(iter(arms.values()))["classes"][kind]["slo"]
        if slo is not None and panel.get_xlim()[1] * 2 > slo[measure]:
            panel.axvline(slo[measure], color="black", linestyle=":")
        panel.set_xlabel(f"{measure.upper()} (s), {kind}")
        legend(panel)
    left.set_ylabel("share of finished requests")
    return figure


def goodput(arms: Mapping[str, Any]) -> Figure:
    """Goodput of every run, a column an arm; lines join the runs of one repeat."""
    figure, (panel,) = panel_figure(1, width=2 * _WIDTH, height=_HEIGHT)
    titles = [arm["title"] for arm in arms.values()]
    found = [[run["goodput_per_s"] for run in arm["runs"]] for arm in arms.values()]
    means = [sum(each) / len(each) for each in found]
    panel.bar(range(len(titles)), means, color="lightgray", label="mean")
    for repeat, values in enumerate(zip(*found, strict=True)):
        marker = MARKERS[repeat % len(MARKERS)]
        panel.plot(range(len(titles)), values, marker + "-", label=f"repeat {repeat + 1}")
    panel.set_xticks(range(len(titles)), titles)
    panel.set_ylabel("goodput (requests/s)")
    legend(panel)
    return figure


def ratios(comparison: Mapping[str, Any], titles: Mapping[str, str]) -> Figure:
    """Ratio of every arm to the base with its interval, by metric; 1 is no difference."""
    names = [name for name in comparison["metrics"] if _is_shown(name)]
    others = [name for name in comparison["runs"] if name != comparison["base"]]
    height = 0.3 * len(names) * max(1, len(others)) + 1.2
    figure, (panel,) = panel_figure(1, width=2 * _WIDTH, height=height)
    for place, arm in enumerate(others):
        for row, name in enumerate(names):
            found = comparison["metrics"][name]["ratios"][arm]
            if found["ratio"] is None:
                continue
            at = row + 0.8 * (place + 0.5) / len(others) - 0.4
            label = titles[arm] if row == 0 else None
            color = f"C{place + 1}"
            panel.plot([found["ratio"]], [at], MARKERS[place], color=color, label=label)
            if found["low"] is not None:
                panel.plot([found["low"], found["high"]], [at, at], "-", color=color)
    panel.axvline(1.0, color="black", linestyle=":")
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xlabel(f"ratio to {titles[comparison['base']]}")
    legend(panel)
    return figure


def _is_shown(metric: str) -> bool:
    return metric == "goodput_per_s" or metric.rpartition(".")[2] in _SHOWN
