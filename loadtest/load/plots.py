"""Figures of a run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from loadtest.figures import panel_figure
from loadtest.load.outcome import Outcome
from loadtest.load.workloads import RequestClass

_WIDTH, _HEIGHT = 5.0, 3.4


def distributions(outcomes: Sequence[Outcome], kinds: Mapping[str, RequestClass]) -> Figure:
    """Shares of requests by time to first text and by time per token, with their bounds."""
    figure, (left, right) = panel_figure(2, width=_WIDTH, height=_HEIGHT)
    _shares(left, outcomes, kinds, read=lambda o: o.ttft_s, bound=lambda k: k.slo.ttft)
    _shares(right, outcomes, kinds, read=lambda o: o.tpot_s, bound=lambda k: k.slo.tpot)
    left.set_xlabel("TTFT (s)")
    right.set_xlabel("TPOT (s)")
    left.set_ylabel("share of finished requests")
    return figure


def course(outcomes: Sequence[Outcome], kinds: Mapping[str, RequestClass]) -> Figure:
    """TTFT by the moment of the request, and how many finished requests were under way."""
    figure, (left, right) = panel_figure(2, width=_WIDTH, height=_HEIGHT)
    for name in kinds:
        points = [
            (o.started_s, o.ttft_s) for o in outcomes if o.kind == name if o.ttft_s is not None
        ]
        if points:
            left.plot(*zip(*points, strict=True), ".", label=name)
    failed = [o.started_s for o in outcomes if o.failure is not None]
    if failed:
        left.plot(failed, [0.0] * len(failed), "x", color="black", label="failed")
    left.set_xlabel("start (s)")
    left.set_ylabel("TTFT (s)")
    legend(left)
    moments, running = under_way(outcomes)
    right.step(moments, running, where="post")
    right.set_xlabel("time (s)")
    right.set_ylabel("requests under way")
    return figure


def seconds(timeline: Sequence[Mapping[str, Any]]) -> Figure:
    """Requests of every second: offered as a line; served in time, late and failed as bars."""
    figure, (panel,) = panel_figure(1, width=2 * _WIDTH, height=_HEIGHT)
    at = [row["second"] for row in timeline]
    below = [0] * len(at)
    for name, color in (("met", "tab:green"), ("late", "tab:orange"), ("failed", "tab:red")):
        counts = [row[name] for row in timeline]
        panel.bar(at, counts, bottom=below, width=1.0, align="edge", color=color, label=name)
        below = [old + new for old, new in zip(below, counts, strict=True)]
    offered = [row["offered"] for row in timeline]
    panel.step(at, offered, where="post", color="black", label="offered")
    panel.set_xlabel("time (s)")
    panel.set_ylabel("requests per second")
    legend(panel)
    return figure


def growth(talks: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Mean prompt tokens and TTFT (p50, p95) by turn of a conversation, by class."""
    figure, (left, right) = panel_figure(2, width=_WIDTH, height=_HEIGHT)
    for name, rows in talks.items():
        told = [row for row in rows if row["finished"]]
        turns = [row["turn"] + 1 for row in told]
        left.plot(turns, [row["prompt_tokens"] for row in told], "o-", label=name)
        for key, line in (("p50_s", "o-"), ("p95_s", "^:")):
            label = f"{name} {key.removesuffix('_s')}"
            right.plot(turns, [row["ttft"][key] for row in told], line, label=label)
    left.set_ylabel("prompt tokens, mean")
    right.set_ylabel("TTFT (s)")
    for panel in (left, right):
        panel.set_xlabel("turn")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(panel)
    return figure


def under_way(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    """Moments at which a request that finished began or ended, and how many ran from then on."""
    changes = sorted(
        change
        for o in outcomes
        if o.e2e_s is not None
        for change in ((o.started_s, 1), (o.started_s + o.e2e_s, -1))
    )
    return [at for at, _ in changes], list(accumulate(step for _, step in changes))


def _shares(
    panel: Axes,
    outcomes: Sequence[Outcome],
    kinds: Mapping[str, RequestClass],
    *,
    read: Callable[[Outcome], float | None],
    bound: Callable[[RequestClass], float],
) -> None:
    for name, kind in kinds.items():
        values = sorted(v for o in outcomes if o.kind == name if (v := read(o)) is not None)
        if not values:
            continue
        shares = [(rank + 1) / len(values) for rank in range(len(values))]
        (line,) = panel.step(values, shares, where="post", label=name)
        if kind.pause_s == 0 and bound(kind) <= 2 * values[-1]:
            panel.axvline(bound(kind), color=line.get_color(), linestyle=":")
    legend(panel)


def legend(panel: Axes) -> None:
    """A legend where anything has a name."""
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
