"""`python -m loadtest.calibration`: `tandem calibrate` without the command line's packages.

For machines that hold little beside PyTorch.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.calibration.delta_settings import (
    DEFAULT_DELTA_SAMPLES,
    DEFAULT_DELTA_STEPS,
    DEFAULT_FULL_LAYERS,
    DEFAULT_KL_SAMPLES,
    DEFAULT_KL_STEPS,
    DeltaSettings,
)
from loadtest.calibration.run import run_calibration
from loadtest.calibration.settings import (
    DEFAULT_SAMPLES,
    DEFAULT_SAVING,
    CalibrationSettings,
    parse_lengths,
)
from loadtest.calibration.summary import summary
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError


def main(argv: Sequence[str]) -> int:
    """Runs the command; its exit code."""
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
    parser = argparse.ArgumentParser(prog="python -m loadtest.calibration")
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


def _print_progress(stage: str, done: int, total: int) -> None:
    step = max(total // 10, 1)
    if done % step == 0 or done == total:
        print(f"{stage}: {done} of {total} prompts", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
