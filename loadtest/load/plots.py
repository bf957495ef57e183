"""Figures of a run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    _legend(left)
    moments, running = under_way(outcomes)
    right.step(moments, running, where="post")
    right.set_xlabel("time (s)")
    right.set_ylabel("requests under way")
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
    _legend(panel)


def _legend(panel: Axes) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
