"""Finds the depth at which a model can be pruned and its Δ-layers, and writes its profile.

Every depth is measured in three ways on prompts with known needles, or a user's own: how well the
pruning score agrees with the answer-informed oracle, whether the kept tokens hold the needle, and
whether the answer stays as it was. Δ-layers are proposed by how much of the attention of the layers
after them lies in the pages that they choose, and by where attention shifts; the proposal that
decodes closest to dense wins. The same arguments on the same machine give the same
file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.calibration.delta_calibrate import DeltaCalibration, calibrate_delta, delta_samples
from loadtest.calibration.delta_profile import delta_evidence, delta_only_profile, with_delta_layers
from loadtest.calibration.origin import write_profile
from loadtest.calibration.profile import Calibration, calibrated_profile, evidence
from loadtest.calibration.settings import (
    CalibrationSettings,
)
from loadtest.calibration.sweep import Progress, calibrate
from loadtest.sparsity.layer_evidence import CURVES
from shared.model.profile import PAPER, base_profile, calibrated_path, profile_path
from shared.model.profile_record import ModelProfile
from shared.model.profile_toml import profile_text, read_comment, read_evidence
from shared.model.weights import LoadedModel, load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProfile:
    """A calibration that is on disk."""

    path: Path
    """Where."""
    profile: ModelProfile
    """What workers load."""
    found: Calibration | None
    """What was measured of pruning; None when Δ-layers alone were calibrated."""
    delta: DeltaCalibration | None
    """What was measured of Δ-layers; None when they were left as they are."""


def run_calibration(
    settings: CalibrationSettings,
    *,
    out: Path | None,
    cache_dir: Path | None,
    progress: Progress,
    commit: str = "",
) -> WrittenProfile:
    """Calibrates a model and writes its profile, whole or not at all.

    Args:
        settings: what to measure, and on which model.
        out: the file; None puts it where workers look for a profile of these weights.
        cache_dir: model cache; None takes the default one.
        progress: told about every prompt.
        commit: of the code, where it is no git checkout.

    Raises:
        ConfigError: a setting cannot be met, or the file cannot be written.
        ModelLoadError: the model cannot be had.
    """
    loaded = load_model(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        cache_dir=cache_dir,
        profile=settings.profile if settings.sparsity_only else PAPER,
    )
    base = loaded.profile if settings.sparsity_only else base_profile(loaded.model.config)
    params = settings.delta.sparsity_over(base.sparsity)
    samples = (
        delta_samples(loaded, settings=settings, params=params) if settings.measures_delta else []
    )
    comment, curves = "", dict[str, Any]()
    found = None
    if settings.sparsity_only:
        comment, curves = _kept(loaded, settings, cache_dir)
    else:
        found = calibrate(loaded, settings=settings, progress=progress)
    delta = None
    if samples:
        delta = calibrate_delta(
            loaded, samples, settings=settings, params=params, progress=progress
        )
    profile = _profile(loaded, found, delta)
    path = out if out is not None else calibrated_path(profile.fit.hash, cache_dir)
    if found is not None:
        curves = evidence(found, loaded, commit=commit)
    if delta is not None:
        curves[CURVES] = delta_evidence(
            delta,
            loaded,
            command=settings.command,
            commit=commit,
        )
    write_profile(path, profile_text(profile, evidence=curves, comment=comment))
    return WrittenProfile(path=path, profile=profile, found=found, delta=delta)


def _profile(
    loaded: LoadedModel, found: Calibration | None, delta: DeltaCalibration | None
) -> ModelProfile:
    if found is None:
        assert delta is not None, "one of the two was calibrated"
        return delta_only_profile(loaded, delta)
    profile = calibrated_profile(found, loaded)
    return profile if delta is None else with_delta_layers(profile, delta)


def _kept(
    loaded: LoadedModel, settings: CalibrationSettings, cache_dir: Path | None
) -> tuple[str, dict[str, Any]]:
    """The leading comment and the evidence of the profile that was loaded."""
    path = profile_path(
        settings.profile,
        config=loaded.model.config,
        model_hash=loaded.model.identity(loaded.name).model_hash,
        cache_dir=cache_dir,
    )
    return ("", {}) if path is None else (read_comment(path), read_evidence(path))
