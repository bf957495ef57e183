"""What a calibration found, as the profile that workers load and the curves behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from loadtest.calibration.answers import Agreement
from loadtest.calibration.choice import Candidate, token_layer_saving
from loadtest.calibration.origin import origin
from loadtest.calibration.settings import CalibrationSettings
from shared.model.profile_record import ModelFit, ModelProfile
from shared.model.weights import LoadedModel
from shared.types.methods import PruningParams

_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to prune that was tried on every prompt."""

    candidate: Candidate
    """How tokens are ranked."""
    deferred_layers: int
    """m."""
    agreement: Agreement
    """What became of the answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that was measured, and what was chosen."""

    settings: CalibrationSettings
    """What was asked."""
    base: ModelProfile
    """Where every value comes from that is not calibrated."""
    num_right: int
    """Generated prompts that the full model answers right."""
    num_samples: int
    """Prompts."""
    single_rho: Sequence[float]
    """Rho of each layer alone."""
    single_coverage: Sequence[float] | None
    """Needle coverage of each layer alone."""
    collapsed: Sequence[int]
    """Layers that alone lose the needles, or the oracle where there are none."""
    depths: Sequence[Variant]
    """The best ranking at every depth, with the paper's m."""
    refined: Sequence[Variant]
    """Rankings and m at the chosen depth."""
    chosen: Variant
    """What the profile takes."""

    def saving(self, pruning_layer: int) -> float:
        """Token-layers saved when pruning at a layer."""
        return token_layer_saving(
            pruning_layer, num_layers=len(self.single_rho), keep_rate=self.keep_rate
        )

    @property
    def keep_rate(self) -> float:
        """Keep rate of the sweep."""
        return self.settings.rate_over(self.base.pruning)


def calibrated_profile(found: Calibration, loaded: LoadedModel) -> ModelProfile:
    """The profile: calibrated depth, windows and m; everything else as in the base."""
    config, pick = loaded.model.config, found.chosen.candidate
    pruning = replace(
        found.base.pruning,
        pruning_layer=pick.pruning_layer,
        aggregation_window=pick.layer_count,
        observation_window=pick.window,
        pool_kernel=pick.pool,
        aggregation=pick.aggregation,
        deferred_layers=found.chosen.deferred_layers,
        keep_rate=found.keep_rate,
    )
    return ModelProfile(
        name=loaded.name,
        pruning=pruning,
        sparsity=found.base.sparsity,
        source=(
            f"tandem calibrate on {found.num_samples} prompts, {found.num_right} of them needles "
            f"that full attention finds, at {found.keep_rate:g} kept"
        ),
        calibrated=True,
        fit=ModelFit(
            family=config.family,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            hash=loaded.model.identity(loaded.name).model_hash,
        ),
        sources=_sources(found, pruning),
    )


def evidence(found: Calibration, loaded: LoadedModel, *, commit: str) -> dict[str, Any]:
    """The measured curves, as the profile keeps them; equal runs give equal values.

    Args:
        found: what was measured.
        loaded: the model.
        commit: of the code; empty asks git.
    """
    by_layer: dict[str, Any] = {"rho": _rounded(found.single_rho)}
    if found.single_coverage is not None:
        by_layer["coverage"] = _rounded(found.single_coverage)
    return {
        **origin(loaded, command=found.settings.command, commit=commit),
        "prompts": found.num_samples,
        "answered_right_in_full": found.num_right,
        "keep_rate": found.keep_rate,
        "saving_target": found.settings.saving_target,
        "saving": round(found.saving(found.chosen.candidate.pruning_layer), _DIGITS),
        "oracle": found.settings.oracle.label,
        "collapsed_layers": list(found.collapsed),
        "by_layer": by_layer,
        "by_depth": {
            **_curves(found.depths),
            "saving": _rounded([found.saving(v.candidate.pruning_layer) for v in found.depths]),
        },
        "at_the_chosen_depth": _curves(found.refined),
    }


def _curves(variants: Sequence[Variant]) -> dict[str, list[Any]]:
    """Columns of equal length, one entry a variant; a measure that is missing has no column."""
    columns: dict[str, list[Any]] = {
        "pruning_layer": [v.candidate.pruning_layer for v in variants],
        "aggregation": [v.candidate.aggregation.value for v in variants],
        "aggregation_window": [v.candidate.layer_count for v in variants],
        "observation_window": [v.candidate.window for v in variants],
        "pool_kernel": [v.candidate.pool for v in variants],
        "deferred_layers": [v.deferred_layers for v in variants],
        "rho": _rounded([v.candidate.rho for v in variants]),
        "coverage": _rounded([v.candidate.coverage for v in variants]),
        "first_token": _rounded([v.agreement.first_token for v in variants]),
        "answers": _rounded([v.agreement.answers for v in variants]),
        "quality": [v.candidate.quality(v.agreement) for v in variants],
    }
    return {name: values for name, values in columns.items() if values}


def _rounded(values: Sequence[float | None]) -> list[float]:
    return [round(value, _DIGITS) for value in values if value is not None]


def _sources(found: Calibration, pruning: PruningParams) -> dict[str, str]:
    pick, agreement = found.chosen.candidate, found.chosen.agreement
    answers = "" if agreement.answers is None else f", {agreement.answers:.1%} of the answers kept"
    swept = f"calibrated: quality {pick.quality(agreement):.3f}{answers}"
    calibrated = {
        "pruning_layer": f"{swept}, {found.saving(pick.pruning_layer):.1%} of token-layers saved",
        "aggregation_window": f"calibrated: layers {pick.layers.start} to {pick.layers.stop - 1}",
        "observation_window": "calibrated with aggregation_window",
        "pool_kernel": "calibrated with aggregation_window",
        "aggregation": "calibrated with aggregation_window",
        "deferred_layers": "calibrated: the fewest that keep the most answers",
        "keep_rate": "the rate of the calibration",
    }
    kept = {}
    for section, params in (("pruning", pruning), ("sparsity", found.base.sparsity)):
        for field in fields(params):
            key = f"{section}.{field.name}"
            given = found.base.sources.get(key)
            if given is not None or getattr(params, field.name) != field.default:
                kept[key] = given if given is not None else found.base.source
    return {**kept, **{f"pruning.{name}": text for name, text in calibrated.items()}}
