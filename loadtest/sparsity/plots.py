"""The figures of a study of page policies, as PNG bytes. Needs matplotlib (extra `eval`)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from loadtest.figures import MARKERS, panel_figure, png_files
from loadtest.sparsity.generation import CURVE_TOKENS
from loadtest.sparsity.layer_plots import recall_figure, shift_figure
from loadtest.sparsity.page_strip import PageStrip, draw_strip
from loadtest.sparsity.records import (
    ABLATION,
    DENSE,
    TEACHER,
    ArmFact,
    CalibrationFact,
    GenerationFact,
    PageStripFact,
    SparsityFact,
)
from loadtest.sparsity.tables import forced_of, forced_table, frontier
from shared.kv.geometry import PAGE_SIZE
from shared.types.page_policies import PagePolicyName

_CONTROLS = ("random", "recency", "oracle_topk")
_STRIPS = 4
"""Page strips in a report at most."""


def draw_all(facts: Sequence[SparsityFact]) -> dict[str, bytes]:
    """Every figure that the facts are enough for: file name without ending, to PNG."""
    curves = next((fact.curves for fact in facts if isinstance(fact, CalibrationFact)), None)
    drawings = {
        "closeness_by_budget": closeness_by_budget(facts),
        "recall_by_layer": recall_by_layer(facts),
        "frontier": frontier_figure(facts),
        "ablations": ablations(facts),
        "generation": generation(facts),
        "calibration_shift": None if curves is None else shift_figure(curves),
        "calibration_recall": None if curves is None else recall_figure(curves),
    }
    return {**png_files(drawings), **page_strips(facts)}


def closeness_by_budget(facts: Sequence[SparsityFact]) -> Figure | None:
    """KL from dense and agreement with it over the budget, one line a policy."""
    rows = [row for row in forced_table(forced_of(facts, TEACHER)) if row["arm"] != DENSE]
    if not rows:
        return None
    drawn, (left, right) = panel_figure(2, width=6.2, height=4.6, columns=2)
    names = sorted({row["arm"] for row in rows})
    colours = colormaps["tab20"](range(len(names)))
    for index, (name, colour) in enumerate(zip(names, colours, strict=True)):
        line = sorted((row for row in rows if row["arm"] == name), key=lambda row: row["budget"])
        budgets = [row["budget"] for row in line]
        style = f"{MARKERS[index % len(MARKERS)]}{':' if name in _CONTROLS else '-'}"
        left.plot(budgets, [row["kl"] for row in line], style, color=colour, label=name)
        shares = [row["agreement"]["share"] for row in line]
        right.plot(budgets, shares, style, color=colour, label=name)
    left.set(ylabel="KL(dense || policy), nats", yscale="log")
    right.set(ylabel="share of top tokens that are dense's")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row["budget"] for row in rows}))
        axes.get_xaxis().set_major_formatter("{x:g}")
        axes.set_xlabel("tokens a sparse layer may read")
        axes.grid(alpha=0.3)
    drawn.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=7
    )
    return drawn


def recall_by_layer(facts: Sequence[SparsityFact]) -> Figure | None:
    """Heat maps: recall of attention mass of every policy in every layer, one panel a budget."""
    rows = [
        row
        for row in forced_table(forced_of(facts, TEACHER))
        if any(value is not None for value in row["layer_recall"])
    ]
    budgets = sorted({row["budget"] for row in rows})
    if not budgets:
        return None
    most = max(sum(row["budget"] == budget for row in rows) for budget in budgets)
    drawn, panels = panel_figure(len(budgets), width=11, height=1.2 + 0.28 * most, columns=1)
    for axes, budget in zip(panels, budgets, strict=True):
        here = [row for row in rows if row["budget"] == budget]
        cells = [[_known(value) for value in row["layer_recall"]] for row in here]
        image = axes.imshow(cells, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_yticks(range(len(here)), [row["arm"] for row in here], fontsize=7)
        axes.set(title=f"{budget} tokens", xlabel="layer (white: reads everything)")
        drawn.colorbar(image, ax=axes)
    return drawn


def frontier_figure(facts: Sequence[SparsityFact]) -> Figure | None:
    """Agreement against the share of dense's token-layers that is read, every ablation a point."""
    points = frontier(facts)
    if not points:
        return None
    drawn = Figure(figsize=(10, 5.5), layout="constrained")
    axes = drawn.add_subplot()
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        groups[point["group"]].append(point)
    for index, (group, own) in enumerate(sorted(groups.items())):
        axes.scatter(
            [point["read"] for point in own],
            [point["agreement"] for point in own],
            marker=MARKERS[index % len(MARKERS)],
            label=group,
            alpha=0.8,
        )
    best = [point for point in points if point["best"]]
    reads, shares = [p["read"] for p in best], [p["agreement"] for p in best]
    axes.step(reads, shares, where="post", color="grey", linewidth=0.8)
    for point in best:
        axes.annotate(
            point["arm"], (point["read"], point["agreement"]), fontsize=6, rotation=20,
            xytext=(3, 3), textcoords="offset points",
        )  # fmt: skip
    axes.set(
        xlabel="token-layers read, share of dense's", ylabel="share of top tokens that are dense's"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return drawn


def ablations(facts: Sequence[SparsityFact]) -> Figure | None:
    """Agreement over each thing that was varied, a panel a group, one point an arm."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in forced_table(forced_of(facts, ABLATION)):
        if row["arm"] != DENSE:
            groups[row["group"]].append(row)
    if not groups:
        return None
    drawn, panels = panel_figure(len(groups), width=5.2, height=3.6, columns=3)
    for axes, (group, rows) in zip(panels, sorted(groups.items()), strict=True):
        labels = [_label(row, rows) for row in rows]
        places = range(len(rows))
        shares = [row["agreement"]["share"] for row in rows]
        lows = [share - row["agreement"]["low"] for share, row in zip(shares, rows, strict=True)]
        highs = [row["agreement"]["high"] - share for share, row in zip(shares, rows, strict=True)]
        axes.errorbar(shares, places, xerr=[lows, highs], fmt="o", markersize=4, capsize=2)
        axes.set_yticks(places, labels, fontsize=6)
        axes.set_title(group, fontsize=9)
        axes.grid(alpha=0.3)
    return drawn


def generation(facts: Sequence[SparsityFact]) -> Figure | None:
    """Log-probability under dense along each free generation."""
    runs = [fact for fact in facts if isinstance(fact, GenerationFact)]
    if not runs:
        return None
    drawn = Figure(figsize=(9, 4.5), layout="constrained")
    axes = drawn.add_subplot()
    for run in runs:
        ends = [
            min(run.tokens, CURVE_TOKENS * (index + 1)) for index in range(len(run.logprob_curve))
        ]
        label = run.arm if run.arm == DENSE else f"{run.arm}, {run.budget} tokens"
        style = "k-" if run.arm == DENSE else "-"
        axes.plot(ends, run.logprob_curve, style, marker=".", label=f"{label}, text {run.seed}")
    axes.set(xlabel="generated tokens", ylabel="mean log-probability under dense, nats a token")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return drawn


def page_strips(facts: Sequence[SparsityFact]) -> dict[str, bytes]:
    """Steps x pages of the first few strips, refreshes marked."""
    arms = {(f.arm, f.budget): f for f in reversed(facts) if isinstance(f, ArmFact)}
    strips = [fact for fact in facts if isinstance(fact, PageStripFact)]
    return {
        f"page_strip_{fact.arm}_{fact.budget}_layer_{fact.layer}": draw_strip(
            _strip(fact, arms.get((fact.arm, fact.budget)))
        )
        for fact in strips[:_STRIPS]
    }


def _strip(fact: PageStripFact, arm: ArmFact | None) -> PageStrip:
    planner = "its own choice" if fact.planner is None else f"chosen by layer {fact.planner}"
    return PageStrip(
        layer=fact.layer,
        title=f"{fact.arm}, {fact.budget} tokens: layer {fact.layer}, {planner}",
        shares=[
            [float(page in read) for page in range(held)]
            for held, read in zip(fact.num_pages, map(set, fact.pages), strict=True)
        ],
        refreshed=fact.refreshed,
        recent=0 if arm is None else _recent_pages(arm),
        prompt_slots=fact.context,
        stride=fact.steps[1] - fact.steps[0] if len(fact.steps) > 1 else 1,
    )


def _recent_pages(arm: ArmFact) -> int:
    """Last pages that the arm always reads; 0 for policies without such pages."""
    reads = "recency_pages" in PagePolicyName(arm.policy).reads
    return int(arm.sparsity["recency_pages"]) if reads else 0


def _label(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The arm, with its budget and prefill where the panel has several of either."""
    parts = [row["arm"]]
    if len({other["budget"] for other in rows}) > 1:
        parts.append(f"{row['budget'] // PAGE_SIZE} pages")
    if len({other["prefill"] for other in rows}) > 1:
        parts.append(row["prefill"])
    return ", ".join(parts)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
