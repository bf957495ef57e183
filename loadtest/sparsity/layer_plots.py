"""Pictures of the curves that Δ-layers were chosen by, from a profile's evidence. Needs matplotlib.

Shapes: none; the evidence is plain lists, one value a layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.sparsity.layer_evidence import BY_RECALL, BY_SHIFT, recall_matrix

_COLOURS = ("tab:green", "tab:red", "black")


def shift_figure(curves: Mapping[str, Any]) -> Figure:
    """Attention shift by layer, how much each layer turns the stream, and sets of full layers.

    The sets are those that recall and the shift propose, and the chosen one.

    Args:
        curves: the evidence of a calibration of Δ-layers.
    """
    by_layer = curves["by_layer"]
    layers = range(1, len(by_layer["shift"]))
    drawn = Figure(figsize=(11, 4), layout="constrained")
    axes = drawn.add_subplot()
    axes.bar(layers, by_layer["shift"][1:], color="tab:blue", alpha=0.5, label="attention shift")
    axes.plot(layers, by_layer["shift_with_sinks"][1:], "o-", markersize=3, label="with sinks")
    axes.plot(layers, by_layer["turn"][1:], "k:", linewidth=1, label="1 - cos(in, out)")
    rules = dict.fromkeys((BY_RECALL, BY_SHIFT, curves["chosen_by"]))
    for row, (rule, colour) in enumerate(zip(rules, _COLOURS, strict=False)):
        layers_of_rule = curves["full_layers"][rule]
        chosen = " (chosen)" if rule == curves["chosen_by"] else ""
        heights = [-0.03 - 0.04 * row] * len(layers_of_rule)
        axes.plot(layers_of_rule, heights, "^", color=colour, label=f"full layers: {rule}{chosen}")
    axes.set(xlabel="layer", ylabel="1 - cos with the layer before", xlim=(-0.5, len(layers) + 0.5))
    axes.legend(fontsize=7, ncols=3)
    axes.grid(alpha=0.3)
    return drawn


def recall_figure(curves: Mapping[str, Any]) -> Figure:
    """Recall of every layer by every earlier one: its mean, and its 10th percentile."""
    num_layers = len(curves["by_layer"]["shift"])
    drawn = Figure(figsize=(12, 5.6), layout="constrained")
    both = {"recall": "mean", "low_recall": "10th percentile"}
    for place, (table, title) in enumerate(both.items()):
        axes = drawn.add_subplot(1, 2, place + 1)
        matrix = recall_matrix(curves[table], num_layers=num_layers)
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis", origin="upper")
        axes.set(title=title, xlabel="layer that reads", ylabel="layer that chooses")
        _stairs(axes, curves["full_layers"][curves["chosen_by"]], num_layers=num_layers)
        drawn.colorbar(image, ax=axes, shrink=0.8)
    return drawn


def _stairs(axes: Axes, full_layers: Sequence[int], *, num_layers: int) -> None:
    """The cells that the chosen layers really use."""
    ends = [*full_layers[1:], num_layers]
    for layer, end in zip(full_layers, ends, strict=True):
        if end > layer + 1:
            axes.plot([layer + 0.5, end - 0.5], [layer, layer], color="red", linewidth=2)
