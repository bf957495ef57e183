"""Finds the depth at which a model can be pruned and its Δ-layers, and writes its profile.

python -m loadtest.quality.calibrate --model smollm2 --device cuda --out profile.toml

Every depth is measured in three ways on prompts with known needles, or a user's own: how well the
pruning score agrees with the answer-informed oracle, whether the kept tokens hold the needle, and
whether the answer stays as it was. Δ-layers are proposed by how much of the attention of the layers
after them lies in the pages that they choose, and by where attention shifts; the proposal that
decodes closest to dense wins. The same arguments on the same machine give the same
file.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.quality.calibrate_origin import write_profile
from loadtest.quality.calibrate_profile import Calibration, calibrated_profile, evidence
from loadtest.quality.calibrate_settings import (
    DEFAULT_SAMPLES,
    DEFAULT_SAVING,
    CalibrationSettings,
)
from loadtest.quality.calibrate_sweep import Progress, calibrate
from loadtest.quality.delta_calibrate import DeltaCalibration, calibrate_delta, delta_samples
from loadtest.quality.delta_choice import expected_recall
from loadtest.quality.delta_profile import (
    CURVES,
    delta_evidence,
    delta_only_profile,
    with_delta_layers,
)
from loadtest.quality.delta_settings import (
    DEFAULT_DELTA_SAMPLES,
    DEFAULT_DELTA_STEPS,
    DEFAULT_FULL_LAYERS,
    DEFAULT_KL_SAMPLES,
    DEFAULT_KL_STEPS,
    DeltaSettings,
)
from shared.config.exit_codes import exit_code_for
from shared.errors import ConfigError, TandemError
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


def parse_lengths(text: str) -> tuple[int, ...]:
    """Prompt lengths from a comma-separated list; empty when the text is.

    Raises:
        ConfigError: something in it is no whole number.
    """
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise ConfigError(
            f"--lengths {text!r} is no list of whole numbers: write it like 1024,4096"
        ) from error


def main(argv: Sequence[str]) -> int:
    """The command without the command-line packages, for machines that have only the engine's."""
    given = _parser().parse_args(argv)
    try:
        settings = CalibrationSettings(
            model=given.model,
            samples=given.samples,
            prompts=given.prompts,
            lengths=parse_lengths(given.lengths),
            saving_target=given.saving_target,
            keep_rate=given.keep,
            seed=given.seed,
            device=given.device,
            dtype=given.dtype,
            delta=DeltaSettings(
                samples=given.delta_samples,
                steps=given.delta_steps,
                full_layers=given.full_layers,
                page_budget=given.page_budget,
                kl_samples=given.kl_samples,
                kl_steps=given.kl_steps,
                refine=given.refine,
            ),
            sparsity_only=given.sparsity_only,
            profile=given.profile,
        )
        written = run_calibration(
            settings,
            out=given.out,
            cache_dir=given.cache_dir,
            progress=_print_progress,
            commit=given.commit,
        )
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code_for(error)
    print(summary(written))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.quality.calibrate")
    add = parser.add_argument
    add("--model", default="smollm2")
    add("--samples", type=int, default=DEFAULT_SAMPLES)
    add("--prompts", type=Path)
    add("--lengths", default="", help="tokens of generated prompts, 1024,4096")
    add("--saving-target", type=float, default=DEFAULT_SAVING)
    add("--keep", type=float)
    add("--delta-samples", type=int, default=DEFAULT_DELTA_SAMPLES, help="0: keep the Δ-layers")
    add("--delta-steps", type=int, default=DEFAULT_DELTA_STEPS, help="recorded of each of them")
    add("--full-layers", type=int, default=DEFAULT_FULL_LAYERS, help="how many, 0 and 1 included")
    add("--page-budget", type=int, help="K; the base profile's without it")
    add("--kl-samples", type=int, default=DEFAULT_KL_SAMPLES, help="0: recall alone decides")
    add("--kl-steps", type=int, default=DEFAULT_KL_STEPS, help="decoded of each of them")
    add("--refine", type=int, default=0, help="rounds that move Δ-layers while it helps")
    add(
        "--sparsity-only", action="store_true", help="Δ-layers alone; the rest of the profile stays"
    )
    add("--profile", default="", help="with --sparsity-only: which; the model's own without it")
    add("--seed", type=int, default=0)
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--out", type=Path)
    add("--cache-dir", type=Path)
    add("--commit", default="", help="of the code, where it is no git checkout")
    return parser


def summary(written: WrittenProfile) -> str:
    """What was chosen and how good it is, in a few lines."""
    parts = []
    if written.found is not None:
        parts.append(_pruning_summary(written.found, written.profile))
    if written.delta is not None:
        parts.append(_delta_summary(written.delta))
    return "\n".join([*parts, f"written to {written.path}"])


def _pruning_summary(found: Calibration, profile: ModelProfile) -> str:
    pruning = profile.pruning
    pick, agreement = found.chosen.candidate, found.chosen.agreement
    measures = {
        "rho": pick.rho,
        "coverage": pick.coverage,
        "first token": agreement.first_token,
        "answers kept": agreement.answers,
    }
    told = ", ".join(f"{name} {value:.3f}" for name, value in measures.items() if value is not None)
    return (
        f"lp {pruning.pruning_layer}, n {pruning.aggregation_window}, "
        f"W {pruning.observation_window}, m {pruning.deferred_layers}, "
        f"{pruning.aggregation.value}: saves {found.saving(pruning.pruning_layer):.1%} of the "
        f"token-layers at {found.keep_rate:g} kept\n"
        f"{told} ({found.num_samples} prompts, {found.num_right} answered right in full)"
    )


def _delta_summary(delta: DeltaCalibration) -> str:
    recall = delta.curves.recall_YY.tolist()
    told = [
        f"full layers {','.join(map(str, one.full_layers))} by {one.rule}"
        f"{' (chosen)' if one is delta.best else ''}: recall "
        f"{expected_recall(one.full_layers, recall):.3f}"
        + (f", KL {one.closeness.kl:.4f}" if one.closeness is not None else "")
        for one in delta.candidates
    ]
    where = (
        f"{delta.num_samples} samples, {delta.num_steps} steps, {delta.params.page_budget} pages"
    )
    return "\n".join([*told, f"({where})"])


def _print_progress(stage: str, done: int, total: int) -> None:
    step = max(total // 10, 1)
    if done % step == 0 or done == total:
        print(f"{stage}: {done} of {total} prompts", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
