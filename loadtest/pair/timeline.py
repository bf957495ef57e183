"""One traced request as a picture: computation against transfer, from arrival to the first steps.

Needs matplotlib (extra `eval`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shared.errors import InvalidRequestError

_WIDTH, _HEIGHT = 11.0, 5.6
_LANES = ("decode", "transfer", "prefill", "gateway")
"""From the bottom."""
_BAR = 0.7
_COLORS = {
    "tokenize": "tab:gray",
    "gateway_queue": "tab:olive",
    "prefill_queue": "tab:olive",
    "decode_queue": "tab:olive",
    "first_decode": "tab:purple",
    "stream": "tab:pink",
}
_TAIL = 0.15
"""Share of the time up to the first decode step that is drawn behind it."""


def timeline_figure(report: Mapping[str, Any], *, title: str) -> Figure:
    """Lanes of the hops above, and below what share of the KV was computed and pushed when.

    Args:
        report: the `tandem` object of a traced request that was not answered by a local prefill.
        title: above the picture.

    Raises:
        InvalidRequestError: the request was not traced, or its KV did not move.
    """
    trace = report.get("trace") or {}
    handoff = (trace.get("prompt") or {}).get("handoff")
    bars = trace.get("waterfall") or []
    starts = [bar["start_ms"] for bar in bars if bar["phase"] == "prefill"]
    if not handoff or not handoff["computed"] or not starts:
        raise InvalidRequestError(
            "this answer does not tell when its KV was computed and moved: ask with tandem.trace, "
            "of a gateway and workers of this version"
        )
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    lanes, shares = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    began = starts[0]
    _draw_lanes(lanes, bars, handoff, began=began)
    _draw_shares(shares, handoff, began=began)
    end = max(began + handoff["adopted_ms"], _end_of_first_step(bars))
    shares.set_xlim(0, end * (1 + _TAIL))
    shares.set_xlabel("ms since the request arrived at the gateway")
    moments = {
        "last computation": began + handoff["computed_ms"],
        "first token": trace["ttft_ms"],
        "adopted": began + handoff["adopted_ms"],
    }
    styles = ("-", ":", "--")
    for panel in (lanes, shares):
        for (name, at), style in zip(moments.items(), styles, strict=True):
            panel.axvline(at, color="black", linewidth=0.9, linestyle=style, label=name)
    shares.legend(loc="lower right", fontsize="small")
    exposed = handoff["adopted_ms"] - handoff["computed_ms"]
    lanes.set_title(
        f"{title}: first token after {trace['ttft_ms']:.1f} ms; {report['kv_bytes'] / 1e6:,.0f} MB "
        f"of KV over {report['transport']}, {exposed:.2f} ms of it after the last computation"
    )
    return figure


def _draw_lanes(
    panel: Axes,
    bars: Sequence[Mapping[str, Any]],
    handoff: Mapping[str, Any],
    *,
    began: float,
) -> None:
    for bar in bars:
        color = _COLORS.get(bar["phase"])
        if color is not None:
            _bar(panel, bar["hop"], [(bar["start_ms"], bar["ms"])], colors=[color])
    pieces, colors = _computing(handoff["computed"], began=began)
    _bar(panel, "prefill", pieces, colors=colors)
    pushes = [(began + push["start_ms"], push["ms"]) for push in handoff["pushed"]]
    _bar(panel, "transfer", pushes, colors=["tab:blue"])
    sealed = handoff["sealed_ms"]
    closing = [(began + sealed, handoff["adopted_ms"] - sealed)]
    _bar(panel, "transfer", closing, colors=["tab:orange"])
    panel.set_yticks(range(len(_LANES)), _LANES)
    panel.set_ylim(-0.6, len(_LANES) - 0.4)
    panel.text(
        0.005,
        0.02,
        "prefill: one colour a layer, first dark; transfer: pushes blue, commit orange; "
        "decode: first step purple",
        transform=panel.transAxes,
        fontsize="x-small",
    )


def _computing(
    blocks: Sequence[Mapping[str, Any]], *, began: float
) -> tuple[list[tuple[float, float]], list[tuple[float, ...]]]:
    """Start and length of what each block took since the one before, and a colour by its layer."""
    moments = [0.0, *(block["ms"] for block in blocks)]
    # Layers whose KV waits for the choice become final out of turn, at one moment with others.
    pieces = [(began + before, max(0.0, after - before)) for before, after in pairwise(moments)]
    layers = 1 + max(block["layer"] for block in blocks)
    colors = [tuple(colormaps["viridis"](block["layer"] / layers)) for block in blocks]
    return pieces, colors


def _draw_shares(panel: Axes, handoff: Mapping[str, Any], *, began: float) -> None:
    computed = [(block["ms"], block["slots"]) for block in handoff["computed"]]
    pushed = [(push["start_ms"] + push["ms"], push["bytes"]) for push in handoff["pushed"]]
    for name, steps, color in (("computed", computed, "tab:green"), ("pushed", pushed, "tab:blue")):
        moments = [began, *(began + at for at, _ in steps)]
        panel.step(moments, _shares(amount for _, amount in steps), where="post",
                   color=color, label=f"KV {name}")  # fmt: skip
    panel.set_ylabel("share of the KV")
    panel.set_ylim(0, 1.05)


def _shares(amounts: Iterable[float]) -> list[float]:
    sums = list(accumulate(amounts, initial=0.0))
    return [value / sums[-1] if sums[-1] else 0.0 for value in sums]


def _end_of_first_step(bars: Sequence[Mapping[str, Any]]) -> float:
    return max((b["start_ms"] + b["ms"] for b in bars if b["phase"] == "first_decode"), default=0.0)


def _bar(
    panel: Axes,
    lane: str,
    pieces: Sequence[tuple[float, float]],
    *,
    colors: Sequence[str | tuple[float, ...]],
) -> None:
    panel.broken_barh(pieces, (_LANES.index(lane) - _BAR / 2, _BAR), facecolors=colors)
