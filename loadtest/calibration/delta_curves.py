"""Two curves that Δ-layers are chosen by: attention shift, and recall of one layer by another.

Shift is the paper's: where a layer looks elsewhere than the layer before it. Recall is the
yardstick itself: how much of a layer's attention lies in the pages that an earlier layer chooses.

Shapes: Y layers, T slots, P pages, Q steps of all samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from decode_service.sparsity.page_scores import page_sums, top_pages
from loadtest.calibration.delta_attention import StepAttention

LOW_QUANTILE = 0.1
"""The low end of recall that is told beside its mean."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCurves:
    """Both curves of one step, or of many on average; all float64."""

    shift_Y: Tensor
    """1 - cos of the page scores of a layer and the one before it, page 0 and the recent pages
    left out; 0 for layer 0."""
    shift_with_sinks_Y: Tensor
    """The same over all pages."""
    recall_YY: Tensor
    """[i, j]: share of layer j's attention in the pages that layer i would choose."""
    recall_low_YY: Tensor
    """Its 10th percentile over steps; that of a single step is its recall."""
    turn_Y: Tensor
    """1 - cos(residual stream before, after) of each layer: how much a layer matters."""


def step_curves(step: StepAttention, *, page_budget: int, recency_pages: int) -> LayerCurves:
    """The curves of one step.

    Args:
        step: what every layer looked at.
        page_budget: K, below the step's number of pages, or every recall is 1.
        recency_pages: L.
    """
    scores_YP = page_sums(step.scores_YT.double())
    middle_YP = scores_YP.clone()
    middle_YP[:, 0] = 0.0
    middle_YP[:, -recency_pages:] = 0.0
    chosen_YP = torch.zeros_like(scores_YP)
    for layer, scores_P in enumerate(scores_YP):
        pages = top_pages(scores_P, budget=page_budget, recency=recency_pages)
        chosen_YP[layer, pages] = 1.0
    recall_YY = chosen_YP @ page_sums(step.mass_YT.double()).T
    return LayerCurves(
        shift_Y=_shift(middle_YP),
        shift_with_sinks_Y=_shift(scores_YP),
        recall_YY=recall_YY,
        recall_low_YY=recall_YY,
        turn_Y=step.turn_Y,
    )


def mean_curves(samples: Sequence[Sequence[LayerCurves]]) -> LayerCurves:
    """Means over each sample's steps, then over samples; the low recall is over all steps alike."""
    steps = [curves for sample in samples for curves in sample]
    recall_QYY = torch.stack([curves.recall_YY for curves in steps])
    return LayerCurves(
        shift_Y=_mean([[curves.shift_Y for curves in sample] for sample in samples]),
        shift_with_sinks_Y=_mean(
            [[curves.shift_with_sinks_Y for curves in sample] for sample in samples]
        ),
        recall_YY=_mean([[curves.recall_YY for curves in sample] for sample in samples]),
        recall_low_YY=recall_QYY.quantile(LOW_QUANTILE, dim=0),
        turn_Y=_mean([[curves.turn_Y for curves in sample] for sample in samples]),
    )


def _shift(scores_YP: Tensor) -> Tensor:
    same_Y = functional.cosine_similarity(scores_YP[:-1], scores_YP[1:], dim=1)
    return torch.cat((same_Y.new_zeros(1), 1.0 - same_Y))


def _mean(samples: Sequence[Sequence[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(list(steps)).mean(dim=0) for steps in samples]).mean(dim=0)
