"""Chooses full layers from curves by layer: rules only, no model.

Layers 0 and 1 are full and plan nothing, so layer 2 is always the first Δ-layer: the first layer
that reads a choice needs one before it that made it. The last layer has none to choose for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.sparsity.layer_evidence import FIRST_DELTA, WARM_LAYERS
from shared.errors import ConfigError

Curve = Sequence[float]
"""A figure of every layer."""
Matrix = Sequence[Sequence[float]]
"""[i][j]: a figure of layer j, read from the choice of layer i."""


def check_count(count: int, *, num_layers: int) -> None:
    """Refuses a number of full layers that a model cannot have.

    Raises:
        ConfigError: below 3, or as many as layers or more.
    """
    if not FIRST_DELTA < count < num_layers:
        raise ConfigError(
            f"{count} full layers cannot be chosen among {num_layers}: layers 0 and 1 are full, "
            "layer 2 is the first Δ-layer, and one layer must be left to read a choice; give "
            f"--full-layers a number from {FIRST_DELTA + 1} to {num_layers - 1}"
        )


def layers_by_shift(shift: Curve, *, count: int) -> tuple[int, ...]:
    """The paper's choice: peaks of the shift, highest first, not nearer than N / (2 Δ-layers).

    Where the curve has too few such peaks, its highest other layers are taken at the same distance,
    and in the end at any.

    Args:
        shift: of every layer.
        count: full layers, the warm ones included.
    """
    num_layers, num_delta = len(shift), count - len(WARM_LAYERS)
    gap = num_layers / (2 * num_delta)
    peaks = [
        layer
        for layer in range(FIRST_DELTA + 1, num_layers - 1)
        if shift[layer - 1] <= shift[layer] >= shift[layer + 1]
    ]
    chosen = [FIRST_DELTA]
    others = range(FIRST_DELTA + 1, num_layers - 1)
    for layers, distance in ((peaks, gap), (others, gap), (others, 1.0)):
        for layer in sorted(layers, key=lambda index: (-shift[index], index)):
            apart = all(abs(layer - other) >= distance for other in chosen)
            if len(chosen) < num_delta and apart:
                chosen.append(layer)
    return (*WARM_LAYERS, *sorted(chosen))


def layers_by_recall(recall: Matrix, weights: Curve, *, count: int) -> tuple[int, ...]:
    """The full layers with the highest weighted recall, by dynamic programming over the last one.

    A sparse layer counts its recall by the last full layer before it, a full layer counts 1; of
    equals the one with the smaller layers.

    Args:
        recall: of every layer by every earlier one.
        weights: how much each layer matters.
        count: full layers, the warm ones included.
    """
    num_layers = len(weights)
    best = {FIRST_DELTA: _Chain(value=0.0, layers=(FIRST_DELTA,))}
    for _ in range(count - len(WARM_LAYERS) - 1):
        best = {
            layer: max(
                (
                    chain.then(layer, _served(recall, weights, by=last, until=layer))
                    for last, chain in best.items()
                    if last < layer
                ),
                key=_Chain.rank,
            )
            for layer in range(min(best) + 1, num_layers - 1)
        }
    ended = [
        chain.then(num_layers, _served(recall, weights, by=last, until=num_layers))
        for last, chain in best.items()
    ]
    return (*WARM_LAYERS, *max(ended, key=_Chain.rank).layers[:-1])


def neighbours(full_layers: Sequence[int], *, num_layers: int) -> list[tuple[int, ...]]:
    """The sets with one Δ-layer, other than the first, moved by one or two layers."""
    found: dict[tuple[int, ...], None] = {}
    for layer in full_layers:
        for moved in (layer - 2, layer - 1, layer + 1, layer + 2):
            fits = FIRST_DELTA < moved < num_layers - 1 and moved not in full_layers
            if layer > FIRST_DELTA and fits:
                found[tuple(sorted({*full_layers, moved} - {layer}))] = None
    return list(found)


def expected_recall(full_layers: Sequence[int], recall: Matrix) -> float:
    """Mean recall of the sparse layers, each by the last full layer before it; 1 without any."""
    found = []
    last = full_layers[0]
    for layer in range(len(recall)):
        if layer in full_layers:
            last = layer
        else:
            found.append(recall[last][layer])
    return fmean(found) if found else 1.0


def weighted_recall(full_layers: Sequence[int], recall: Matrix, weights: Curve) -> float:
    """What `layers_by_recall` maximises, as a share of its bound: 1 when every layer is full."""
    total, last = 0.0, full_layers[0]
    for layer, weight in enumerate(weights):
        if layer in full_layers:
            last = layer
        total += weight * (1.0 if layer == last else recall[last][layer])
    return total / sum(weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """Δ-layers chosen so far, and what the layers before the last of them add up to."""

    value: float
    layers: tuple[int, ...]

    def then(self, layer: int, value: float) -> "_Chain":
        """The chain with another layer."""
        return _Chain(value=self.value + value, layers=(*self.layers, layer))

    def rank(self) -> tuple[float, tuple[int, ...]]:
        """Higher is better."""
        return self.value, tuple(-layer for layer in self.layers)


def _served(recall: Matrix, weights: Curve, *, by: int, until: int) -> float:
    """What a full layer and the sparse ones after it, up to the next full one, are worth."""
    return weights[by] + sum(weights[j] * recall[by][j] for j in range(by + 1, until))
