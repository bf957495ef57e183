"""The report's figures, as PNG bytes. Needs matplotlib (extra `eval`)."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.figures import MARKERS, panel_figure, png_files
from loadtest.quality.layers import SINGLE, depth_summary, mean_curve
from loadtest.quality.store import CorrelationCurve, Fact, Trial
from loadtest.quality.summary import (
    CONTROLS,
    FULL,
    MIXTURE,
    NEEDLE,
    arms_of,
    kept_answers,
    long_prompts,
    longest_ratio,
    trials_of,
    ttft_ratio,
)


def draw_all(facts: Sequence[Fact]) -> dict[str, bytes]:
    """Every figure that the facts are enough for: file name without ending, to PNG."""
    drawings = {
        "correlation_by_layer": correlation_by_layer(facts),
        "needle_grid": needle_grid(facts),
        "quality_against_ttft": quality_against_ttft(facts),
        "ablations": ablations(facts),
    }
    return png_files(drawings)


def correlation_by_layer(facts: Sequence[Fact]) -> Figure | None:
    """Needles kept and rho to each oracle: single layers by task, each aggregate by its last."""
    rows = [fact for fact in facts if isinstance(fact, CorrelationCurve)]
    if not rows:
        return None
    oracles = sorted({row.oracle for row in rows})
    covered = [row for row in rows if row.coverage is not None and row.oracle == oracles[0]]
    figure = Figure(figsize=(11, 4.2 * (len(oracles) + 1)), layout="constrained")
    panels = figure.subplots(len(oracles) + 1, 1, squeeze=False)[:, 0]
    _draw_curves(panels[0], [(row, row.coverage) for row in covered if row.coverage is not None])
    panels[0].set(title="Needle tokens that are kept", ylabel="share")
    for axes, oracle in zip(panels[1:], oracles, strict=True):
        _draw_curves(axes, [(row, row.rho) for row in rows if row.oracle == oracle])
        axes.set(title=f"Agreement with the oracle: {oracle}", ylabel="Spearman's rho")
    summary = depth_summary(facts)
    for axes in panels:
        if summary is not None:
            _mark_layers(axes, window=summary["window"], collapsed=summary["collapsed"])
        axes.set(xlabel="layer")
        axes.legend(fontsize=7, ncols=3)
    return figure


def needle_grid(facts: Sequence[Fact]) -> Figure | None:
    """Needle accuracy by depth and length, one panel an arm, at the rate nearest 20 %."""
    trials = [trial for trial in trials_of(facts, NEEDLE) if trial.depth is not None]
    rates = sorted({trial.rate for trial in trials if trial.arm != FULL})
    if not rates:
        return None
    rate = min(rates, key=lambda value: abs(value - 0.2))
    arms = [arm for arm in arms_of(trials) if arm[0] == FULL or arm[1] == rate]
    lengths = sorted({trial.length for trial in trials})
    depths = sorted({trial.depth for trial in trials if trial.depth is not None})
    figure, panels = panel_figure(len(arms), width=2.6, height=2.4)
    for axes, (arm, arm_rate) in zip(panels, arms, strict=True):
        cells = [
            [
                _mean_score(trials, arm=arm, rate=arm_rate, length=length, depth=depth)
                for length in lengths
            ]
            for depth in depths
        ]
        axes.imshow(cells, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axes.set_title(arm if arm == FULL else f"{arm}, {arm_rate:.0%}", fontsize=8)
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths], fontsize=7)
        axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths], fontsize=7)
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                if not math.isnan(value):
                    axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6)
    return figure


def quality_against_ttft(facts: Sequence[Fact]) -> Figure | None:
    """Kept answers to long prompts against time to first token, one line a ranker."""
    kept = kept_answers(long_prompts(trials_of(facts, MIXTURE)))
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (arm, rate), share in kept.items():
        ratio = longest_ratio(ttft_ratio(facts, arm, rate))
        if ratio is not None and share.value is not None:
            points[arm].append((ratio, share.value))
    if not points:
        return None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=colormaps["tab20"](range(len(points))))
    for index, (arm, line) in enumerate(sorted(points.items())):
        xs, ys = zip(*line, strict=True)
        style = ":" if arm in CONTROLS else "-"
        axes.plot(xs, ys, style, marker=MARKERS[index % len(MARKERS)], label=arm, alpha=0.8)
    axes.axhline(0.95, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xlabel="time to first token, share of full's in the same run (longest timed prompt)",
        ylabel="share of full's right answers kept, 2k tokens and more",
    )
    axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3)
    return figure


def ablations(facts: Sequence[Fact]) -> Figure | None:
    """Kept answers over each parameter that was varied alone."""
    trials = trials_of(facts, "ablation")
    curves: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for (arm, _), share in kept_answers(trials).items():
        name, _, value = arm.partition("=")
        if value and share.value is not None:
            curves[name].append((value, share.value, *share.interval()))
    if not curves:
        return None
    figure, panels = panel_figure(len(curves), width=3.2, height=2.8)
    for axes, (name, points) in zip(panels, sorted(curves.items()), strict=True):
        points.sort(key=lambda point: _as_number(point[0]))
        values, shares, lows, highs = zip(*points, strict=True)
        places = range(len(values))
        axes.fill_between(places, lows, highs, alpha=0.2)
        axes.plot(places, shares, marker="o")
        axes.set_xticks(places, values, fontsize=7, rotation=30 if name in {"agg", "kv"} else 0)
        axes.set_ylim(0, 1.02)
        axes.set_title(name, fontsize=9)
        axes.set_ylabel("kept answers", fontsize=7)
        axes.grid(alpha=0.3)
    return figure


def _draw_curves(axes: Axes, rows: Sequence[tuple[CorrelationCurve, Sequence[float]]]) -> None:
    """Thin: single layers by task; black: their mean; dashed: aggregates."""
    single = [(row.task, curve) for row, curve in rows if row.series == SINGLE]
    for task in sorted({task for task, _ in single}):
        curve = mean_curve(values for name, values in single if name == task)
        axes.plot(curve, linewidth=0.7, alpha=0.5, label=task)
    if single:
        axes.plot(mean_curve(c for _, c in single), "k-", linewidth=2, label="single layer")
    for series in sorted({row.series for row, _ in rows} - {SINGLE}):
        curve = mean_curve(values for row, values in rows if row.series == series)
        axes.plot(curve, "--", linewidth=1.6, label=series)
    axes.grid(alpha=0.3)


def _mark_layers(axes: Axes, *, window: Sequence[int], collapsed: Sequence[int]) -> None:
    """Shades the profile's aggregated layers and marks those that collapse."""
    label = "profile's window"
    axes.axvspan(window[0] - 0.5, window[-1] + 0.5, alpha=0.12, color="green", label=label)
    for index, layer in enumerate(collapsed):
        label = "collapsed layer" if index == 0 else ""
        axes.axvline(layer, color="red", linewidth=0.8, alpha=0.4, label=label)


def _mean_score(
    trials: Iterable[Trial], *, arm: str, rate: float, length: int, depth: float
) -> float:
    wanted = (arm, rate, length, depth)
    scores = [t.score for t in trials if (t.arm, t.rate, t.length, t.depth) == wanted]
    return statistics.fmean(scores) if scores else math.nan


def _as_number(text: str) -> tuple[float, str]:
    try:
        return (float(text), "")
    except ValueError:
        return (0.0, text)
