"""What a calibration is asked to do."""

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtest.calibration.delta_settings import DeltaSettings
from loadtest.quality.depth_grid import SweepGrid
from loadtest.quality.oracle import OracleSwitches
from shared.errors import ConfigError
from shared.types.methods import PruningParams

DEFAULT_SAMPLES = 64
"""Generated prompts unless asked otherwise."""
DEFAULT_SAVING = 0.3
"""Share of the token-layers that pruning must save unless asked otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSettings:
    """Sizes and targets of a calibration."""

    model: str = "smollm2"
    """Catalog name, folder or hub id."""
    samples: int = DEFAULT_SAMPLES
    """Generated prompts."""
    prompts: Path | None = None
    """A user's prompts, one JSON object a line."""
    lengths: tuple[int, ...] = ()
    """Tokens of generated prompts; empty: 1k to 7k, as far as the context reaches."""
    saving_target: float = DEFAULT_SAVING
    """Token-layers to save at least, as a share of a full prefill's."""
    keep_rate: float | None = None
    """r; None: the base profile's."""
    seed: int = 0
    """Of the generated prompts."""
    device: str = "cpu"
    """PyTorch device."""
    dtype: str = "float32"
    """float32 or bfloat16."""
    grid: SweepGrid = field(default_factory=SweepGrid)
    """Windows, pools, layer counts and forms of aggregation to try."""
    deferred: tuple[int, ...] = (0, 2, 4, 8)
    """m to try, ascending."""
    oracle: OracleSwitches = field(default_factory=OracleSwitches)
    """How the oracle scores."""
    delta: DeltaSettings = field(default_factory=DeltaSettings)
    """How Δ-layers are calibrated."""
    sparsity_only: bool = False
    """Calibrate Δ-layers alone and leave the rest of the model's profile as it is."""
    profile: str = ""
    """That profile: a name or a TOML file; empty: the one that workers would load."""

    def __post_init__(self) -> None:
        checks = (
            (self.samples >= 0, "the number of samples is negative: give 0 or more"),
            (
                self._has_something_to_measure,
                "there is nothing to measure on: ask for samples, or name a file of prompts",
            ),
            (
                0.0 < self.saving_target < 1.0,
                f"the saving target {self.saving_target:g} is no share of the work: give a number "
                "above 0 and below 1",
            ),
            (
                self.keep_rate is None or 0.0 < self.keep_rate < 1.0,
                "the keep rate must be above 0 and below 1: at 1 nothing is pruned",
            ),
            (
                self.sparsity_only or not self.profile,
                "a profile to start from is used only with --sparsity-only: a calibration of the "
                "pruning depth starts from the shipped values",
            ),
            (self.seed >= 0, "the seed is negative: give 0 or more"),
            (all(n > 0 for n in self.lengths), "a prompt has at least 1 token: correct --lengths"),
        )
        for ok, text in checks:
            if not ok:
                raise ConfigError(f"calibration: {text}")

    @property
    def measures_delta(self) -> bool:
        """Whether Δ-layers are calibrated."""
        return self.sparsity_only or self.delta.samples > 0

    @property
    def _has_something_to_measure(self) -> bool:
        generated = self.delta.samples if self.sparsity_only else self.samples
        return generated > 0 or self.prompts is not None

    @property
    def command(self) -> str:
        """The command line that gives the same profile."""
        words = ["tandem", "calibrate", "--model", self.model]
        if self.sparsity_only:
            words += ["--sparsity-only", *(["--profile", self.profile] if self.profile else [])]
        else:
            words += ["--samples", str(self.samples)]
        if self.prompts is not None:
            words += ["--prompts", str(self.prompts)]
        if self.lengths:
            words += ["--lengths", ",".join(map(str, self.lengths))]
        if not self.sparsity_only:
            words += ["--saving-target", f"{self.saving_target:g}"]
            if self.keep_rate is not None:
                words += ["--keep", f"{self.keep_rate:g}"]
        words += self.delta.words()
        words += ["--seed", str(self.seed), "--device", self.device, "--dtype", self.dtype]
        return shlex.join(words)

    def rate_over(self, params: PruningParams) -> float:
        """r: as asked, else that of `params`."""
        return params.keep_rate if self.keep_rate is None else self.keep_rate

    def pruning_over(self, params: PruningParams) -> PruningParams:
        """CLAA's parameters of the sweep: those of `params` that are not calibrated."""
        return replace(params, ranker="claa", kv_rate=None, keep_rate=self.rate_over(params))


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
