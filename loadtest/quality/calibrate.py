"""Finds the depth at which a model can be pruned, and writes its profile.

python -m loadtest.quality.calibrate --model smollm2 --device cuda --out profile.toml

Every depth is measured in three ways on prompts with known needles, or a user's own: how well the
pruning score agrees with the answer-informed oracle, whether the kept tokens hold the needle, and
whether the answer stays as it was. The same arguments on the same machine give the same file.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.quality.calibrate_profile import Calibration, calibrated_profile, evidence
from loadtest.quality.calibrate_settings import (
    DEFAULT_SAMPLES,
    DEFAULT_SAVING,
    CalibrationSettings,
)
from loadtest.quality.calibrate_sweep import Progress, calibrate
from shared.config.exit_codes import exit_code_for
from shared.errors import ConfigError, TandemError
from shared.model.profile import PAPER, calibrated_path
from shared.model.profile_record import ModelProfile
from shared.model.profile_toml import profile_text
from shared.model.weights import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProfile:
    """A calibration that is on disk."""

    path: Path
    """Where."""
    profile: ModelProfile
    """What workers load."""
    found: Calibration
    """What was measured."""


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
        profile=PAPER,
    )
    found = calibrate(loaded, settings=settings, progress=progress)
    profile = calibrated_profile(found, loaded)
    path = out if out is not None else calibrated_path(profile.fit.hash, cache_dir)
    _write(path, profile_text(profile, evidence=evidence(found, loaded, commit=commit)))
    return WrittenProfile(path=path, profile=profile, found=found)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise ConfigError(
            f"the profile cannot be written to {path} ({error}): choose a folder that you may "
            "write to with --out"
        ) from error


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
    parser = argparse.ArgumentParser(prog="python -m loadtest.quality.calibrate")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--samples", type=int, default=DEFAULT_SAMPLES)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--lengths", default="", help="tokens of generated prompts, 1024,4096")
    parser.add_argument("--saving-target", type=float, default=DEFAULT_SAVING)
    parser.add_argument("--keep", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    given = parser.parse_args(argv)
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


def summary(written: WrittenProfile) -> str:
    """What was chosen and how good it is, in a few lines."""
    found, pruning = written.found, written.profile.pruning
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
        f"{told} ({found.num_samples} prompts, {found.num_right} answered right in full)\n"
        f"written to {written.path}"
    )


def _print_progress(stage: str, done: int, total: int) -> None:
    step = max(total // 10, 1)
    if done % step == 0 or done == total:
        print(f"{stage}: {done} of {total} prompts", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
