"""Sets of full layers: what proposes them, and which of them decodes closest to dense."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest.calibration.delta_choice import layers_by_recall, layers_by_shift, neighbours
from loadtest.calibration.delta_curves import LayerCurves
from loadtest.calibration.delta_measure import Closeness, FullLayers, measure_sets
from loadtest.calibration.delta_samples import DeltaSample
from loadtest.calibration.delta_settings import DeltaSettings
from loadtest.sparsity.layer_evidence import (
    BY_LOW_RECALL,
    BY_RECALL,
    BY_SHIFT,
    BY_WEIGHTED_RECALL,
    REFINED,
    SHIPPED,
)
from shared.errors import ConfigError
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many samples are done, and how many there are."""
KL_DIGITS = 5
"""Sets whose KL is equal to this many decimals are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCandidate:
    """A set of full layers, and how it fares."""

    rule: str
    """What proposes it."""
    full_layers: FullLayers
    """Ascending."""
    closeness: Closeness | None
    """Decoding with it; None when recall alone decides."""


def proposed(curves: LayerCurves, *, count: int, shipped: FullLayers) -> list[DeltaCandidate]:
    """One set a rule, in the order of preference among equals.

    Args:
        curves: means over samples.
        count: full layers of each.
        shipped: the base profile's set; left out when it has another number of layers.
    """
    turn = curves.turn_Y.tolist()
    recall, low = curves.recall_YY.tolist(), curves.recall_low_YY.tolist()
    sets = {
        BY_RECALL: layers_by_recall(recall, [1.0] * len(turn), count=count),
        BY_LOW_RECALL: layers_by_recall(low, [1.0] * len(turn), count=count),
        BY_WEIGHTED_RECALL: layers_by_recall(recall, turn, count=count),
        BY_SHIFT: layers_by_shift(curves.shift_Y.tolist(), count=count),
    }
    if len(shipped) == count:
        sets[SHIPPED] = shipped
    return [
        DeltaCandidate(rule=rule, full_layers=layers, closeness=None)
        for rule, layers in sets.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDecoding:
    """Decodes with sets of full layers."""

    model: Transformer
    """The decoder."""
    samples: Sequence[DeltaSample]
    """What is continued."""
    settings: DeltaSettings
    """Steps of a sample, and rounds of the refinement."""
    params: SparsityParams
    """K and L."""
    progress: Progress
    """Told about every sample."""

    def measured(
        self, candidates: Sequence[DeltaCandidate], *, title: str = "sets of full layers"
    ) -> list[DeltaCandidate]:
        """The same with their closeness; equal sets are run once.

        Raises:
            ConfigError: no sample goes on for two tokens.
        """
        sets = list(dict.fromkeys(one.full_layers for one in candidates))
        found = measure_sets(
            self.model,
            self.samples,
            sets,
            params=self.params,
            steps=self.settings.kl_steps,
            progress=lambda done: self.progress(title, done, len(self.samples)),
        )
        if not found:
            raise ConfigError(
                "calibration: no answer of the KL samples has two tokens, so that sets of full "
                "layers cannot be compared; give generated samples, or --kl-samples 0"
            )
        closeness = dict(zip(sets, found, strict=True))
        return [replace(one, closeness=closeness[one.full_layers]) for one in candidates]

    def refined(self, candidates: list[DeltaCandidate]) -> list[DeltaCandidate]:
        """And the neighbours of the best, then of the best of those, while they are closer."""
        known = list(candidates)
        for number in range(1, self.settings.refine + 1):
            best = min(known, key=rounded_kl)
            tried = {one.full_layers for one in known}
            moved = [
                DeltaCandidate(rule=f"{REFINED}_{number}", full_layers=layers, closeness=None)
                for layers in neighbours(best.full_layers, num_layers=len(self.model.layers))
                if layers not in tried
            ]
            if not moved:
                break
            closest = min(self.measured(moved, title=f"refinement {number}"), key=rounded_kl)
            if rounded_kl(closest) >= rounded_kl(best):
                break
            known.append(closest)
        return known


def rounded_kl(candidate: DeltaCandidate) -> float:
    """What measured sets are compared by."""
    assert candidate.closeness is not None, "only measured sets are compared"
    return round(candidate.closeness.kl, KL_DIGITS)
