"""Figures of prefill and decode benches. Needs matplotlib (extra `eval`)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from loadtest.figures import MARKERS, panel_figure
from loadtest.micro.plot_points import PREFILL, STEPS, MeasuredPoints, Point

_WIDTH, _HEIGHT = 5.4, 4.0
_COLUMNS = 2
_HEADROOM = 1.08

_COLORS = {"dense": "C0", "delta": "C1", "pruned": "C2", "pair": "C3", "vllm": "C4"}
"""Arms of steps: one has one colour in every panel, as a course and as points."""


def ttft_by_length(found: MeasuredPoints) -> Figure | None:
    """Time to the first logits by a prompt's tokens, a line an arm, a panel a shape."""
    if not found.ttft:
        return None
    drawn, panels = panel_figure(len(found.ttft), width=_WIDTH, height=_HEIGHT, columns=_COLUMNS)
    for panel, (shape, arms) in zip(panels, sorted(found.ttft.items()), strict=True):
        for number, (arm, points) in enumerate(arms.items()):
            _points(panel, points, label=arm, color=f"C{number % 10}", marker=_marker(number))
        panel.set_title(shape)
        panel.set_xlabel("prompt tokens")
        panel.set_ylabel("time to first logits (ms)")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        _plain_ticks(panel, sorted({tokens for points in arms.values() for tokens in points}))
        panel.legend(fontsize="small")
    return _told(drawn, found.sources[PREFILL])


def step_by_context(found: MeasuredPoints) -> Figure | None:
    """Milliseconds of a step by context: generations as lines, single contexts as points."""
    names = found.panels()
    if not names:
        return None
    drawn, panels = panel_figure(len(names), width=_WIDTH, height=_HEIGHT, columns=_COLUMNS)
    for panel, name in zip(panels, names, strict=True):
        courses, steps = found.courses.get(name, {}), found.steps.get(name, {})
        arms = list(dict.fromkeys([*courses, *steps]))
        for number, arm in enumerate(arms):
            color = _COLORS.get(arm, f"C{(len(_COLORS) + number) % 10}")
            if arm in courses:
                _course(panel, courses[arm], label=arm, color=color)
            if arm in steps:
                label = f"{arm}, one context" if arm in courses else arm
                line = "" if arm in courses else "-"
                marker = _marker(number)
                _points(panel, steps[arm], label=label, color=color, marker=marker, line=line)
        panel.set_title(name)
        panel.set_xlabel("context (tokens)")
        panel.set_ylabel("step (ms)")
        longest = [
            point.high
            for by_arm in (courses, steps)
            for each in by_arm.values()
            for point in each.values()
        ]
        panel.set_ylim(0, _HEADROOM * max(longest))
        panel.set_xlim(left=0)
        panel.legend(fontsize="small")
    return _told(drawn, found.sources[STEPS])


def _points(
    panel: Axes,
    points: Mapping[int, Point],
    *,
    label: str,
    color: str,
    marker: str,
    line: str = "-",
) -> None:
    """Medians, with bars from the shortest to the longest time."""
    tokens = sorted(points)
    each = [points[at] for at in tokens]
    below = [point.median - point.low for point in each]
    above = [point.high - point.median for point in each]
    panel.errorbar(
        tokens,
        [point.median for point in each],
        yerr=(below, above),
        label=label,
        color=color,
        marker=marker,
        linestyle=line,
        capsize=2,
        linewidth=1,
    )


def _course(panel: Axes, points: Mapping[int, Point], *, label: str, color: str) -> None:
    """Medians as a line, in a band from the shortest to the longest time."""
    tokens = sorted(points)
    each = [points[at] for at in tokens]
    panel.plot(tokens, [point.median for point in each], label=label, color=color, linewidth=1.4)
    lows, highs = [point.low for point in each], [point.high for point in each]
    panel.fill_between(tokens, lows, highs, color=color, alpha=0.25, linewidth=0)


def _plain_ticks(panel: Axes, tokens: Sequence[int]) -> None:
    panel.set_xticks(tokens, [f"{each:,}" for each in tokens])
    panel.xaxis.set_minor_formatter(NullFormatter())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_formatter(plain)
    panel.yaxis.set_minor_formatter(plain)


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def _told(drawn: Figure, sources: set[str]) -> Figure:
    drawn.supxlabel("; ".join(sorted(sources)), fontsize="x-small")
    return drawn
