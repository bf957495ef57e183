"""The picture of one layer's reads: steps across, KV pages upward. Needs matplotlib (`eval`).

Shapes: S steps, P pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from loadtest.figures import png
from shared.kv.geometry import PAGE_SIZE, pages_for

_UNREAD = (0.90, 0.90, 0.90)
_CHOSEN = (0.12, 0.38, 0.72)
_RECENT = (0.95, 0.56, 0.17)
_FIRST = (0.18, 0.60, 0.32)
_NOT_HELD = (1.0, 1.0, 1.0)
_LEGEND = ((_FIRST, "page 0"), (_CHOSEN, "chosen"), (_RECENT, "recent"), (_UNREAD, "not read"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStrip:
    """What one layer of one row read, step by step."""

    layer: int
    """Decoder layer."""
    title: str
    """Says which policy and layer."""
    shares: Sequence[Sequence[float]]
    """For each step, of every page that the layer holds the share of its slots that was read; where
    heads choose apart, the mean over their choices."""
    refreshed: Sequence[bool]
    """Whether the choice that the layer reads was renewed at a step."""
    recent: int
    """Last pages that are always read; 0: the policy has none."""
    prompt_slots: int
    """Slots of the prompt in this layer; those of the answer follow."""
    stride: int = 1
    """Decode steps from one that is shown to the next."""

    @property
    def skips(self) -> bool:
        """Whether anything was left unread at any step."""
        return any(share < 1.0 for shares in self.shares for share in shares)


def strip_of(
    report: Mapping[str, Any], *, layer: int, prompt_slots: int, recent: int, title: str
) -> PageStrip:
    """The strip of one layer.

    Args:
        report: what `decode_service.engine.inspect.inspect_pages` gave.
        layer: decoder layer.
        prompt_slots: slots of the prompt in this layer.
        recent: last pages that are always read.
        title: of the picture.
    """
    name, planner = str(layer), _planner(report["roles"], layer)
    return PageStrip(
        layer=layer,
        title=title,
        shares=[
            page_shares(
                step["layers"][name], unit=step["unit"][name], length=prompt_slots + index + 1
            )
            for index, step in enumerate(report["steps"])
        ],
        refreshed=[planner in step["refreshed"] for step in report["steps"]],
        recent=recent,
        prompt_slots=prompt_slots,
    )


def page_shares(
    units: Sequence[int] | Sequence[Sequence[int]], *, unit: int, length: int
) -> list[float]:
    """Share of each page's slots that was read.

    Args:
        units: pages or slots, one list for all heads or one a head.
        unit: slots of a unit.
        length: slots that the layer holds.
    """
    rows = [np.atleast_1d(np.asarray(row, dtype=np.int64)) for row in _rows(units)]
    held_P = np.full(pages_for(length), PAGE_SIZE, dtype=np.float64)
    held_P[-1] = length - PAGE_SIZE * (len(held_P) - 1)
    read_P = np.zeros_like(held_P)
    for units_U in rows:
        if unit == PAGE_SIZE:
            read_P[units_U] += held_P[units_U]
        else:
            read_P += np.bincount(units_U // PAGE_SIZE, minlength=len(held_P))
    shares: list[float] = (read_P / held_P / len(rows)).tolist()
    return shares


def draw_strip(strip: PageStrip) -> bytes:
    """The picture as PNG bytes."""
    num_steps, num_pages = len(strip.shares), max(map(len, strip.shares))
    width, height = min(7.0 + num_steps / 80, 20.0), min(3.5 + num_pages / 40, 9.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(
        _colours(strip, num_pages=num_pages), origin="lower", aspect="auto", interpolation="nearest"
    )
    _separate_the_answer(axes, strip)
    _mark_refreshes(axes, strip)
    axes.xaxis.set_major_formatter(lambda shown, _: f"{shown * strip.stride:g}")
    axes.set(title=strip.title, xlabel="decode step", ylabel=f"page of {PAGE_SIZE} tokens")
    patches = [Patch(facecolor=colour, edgecolor="grey", label=text) for colour, text in _LEGEND]
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=[*patches, *handles], loc="outside lower center", ncols=3, fontsize=7)
    return png(figure)


def _colours(strip: PageStrip, *, num_pages: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Red, green and blue of every page at every step, [P, S, 3]."""
    image_PS3 = np.empty((num_pages, len(strip.shares), 3))
    image_PS3[:] = _NOT_HELD
    for step, shares in enumerate(strip.shares):
        colours_P3 = np.tile(np.array(_CHOSEN), (len(shares), 1))
        if strip.recent:
            colours_P3[-strip.recent :] = _RECENT
        colours_P3[0] = _FIRST
        share_P1 = np.asarray(shares)[:, None]
        image_PS3[: len(shares), step] = share_P1 * colours_P3 + (1 - share_P1) * np.array(_UNREAD)
    return image_PS3


def _separate_the_answer(axes: Axes, strip: PageStrip) -> None:
    edge = strip.prompt_slots / PAGE_SIZE - 0.5
    axes.axhline(edge, color="black", linewidth=0.9, linestyle="--", label="answer begins above")


def _mark_refreshes(axes: Axes, strip: PageStrip) -> None:
    """Ticks under the steps at which the Δ-layer before this one chose anew."""
    steps = [step for step, renewed in enumerate(strip.refreshed) if renewed]
    if steps:
        size = max(1.0, min(5.0, 400 / len(strip.refreshed)))
        heights = [-1.2] * len(steps)
        axes.plot(steps, heights, "k^", markersize=size, clip_on=False, label="Δ-layer chose anew")
        axes.set_ylim(bottom=-2.0)


def _planner(roles: Sequence[str], layer: int) -> int:
    """The Δ-layer whose choice a layer reads; -1 when none is before it."""
    return max((index for index in range(layer + 1) if roles[index] == "delta"), default=-1)


def _rows(units: Sequence[int] | Sequence[Sequence[int]]) -> Sequence[Any]:
    apart = bool(units) and not isinstance(units[0], int)
    return units if apart else [units]
