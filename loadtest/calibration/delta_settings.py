"""What the calibration of Δ-layers is asked to do."""

from dataclasses import dataclass, replace

from shared.errors import ConfigError
from shared.types.methods import SparsityParams

DEFAULT_DELTA_SAMPLES = 12
"""Generated samples unless asked otherwise."""
DEFAULT_DELTA_STEPS = 12
"""Decode steps recorded of a sample unless asked otherwise."""
DEFAULT_KL_SAMPLES = 6
"""Samples on which sets of full layers are compared unless asked otherwise."""
DEFAULT_KL_STEPS = 32
"""Decode steps of each of them unless asked otherwise."""
DEFAULT_FULL_LAYERS = 5
"""Full layers unless asked otherwise: the paper's two warm ones and three Δ-layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSettings:
    """Sizes of a calibration of Δ-layers."""

    samples: int = DEFAULT_DELTA_SAMPLES
    """Generated samples, prose and questions in turn; 0 without own prompts: no calibration."""
    steps: int = DEFAULT_DELTA_STEPS
    """Decode steps recorded of each sample at most."""
    full_layers: int = DEFAULT_FULL_LAYERS
    """Full layers of the model, layers 0 and 1 among them."""
    page_budget: int | None = None
    """K; None: the base profile's."""
    kl_samples: int = DEFAULT_KL_SAMPLES
    """Samples on which the sets of full layers are decoded with; 0: recall alone decides."""
    kl_steps: int = DEFAULT_KL_STEPS
    """Decode steps of each of them at most."""
    refine: int = 0
    """Rounds in which Δ-layers of the best set are moved a little, while that helps."""

    def __post_init__(self) -> None:
        checks = (
            (self.samples >= 0, "the number of Δ-samples is negative: give 0 or more"),
            (
                min(self.kl_samples, self.refine) >= 0 and self.kl_steps >= 1,
                "a number of samples, steps or rounds is too small",
            ),
            (
                self.refine == 0 or self.kl_samples > 0,
                "a refinement compares sets by decoding with them: give KL samples as well",
            ),
            (self.steps >= 1, "at least 1 step of a sample must be recorded"),
        )
        for ok, text in checks:
            if not ok:
                raise ConfigError(f"calibration: {text}")

    def words(self) -> list[str]:
        """The flags that give the same settings."""
        words = ["--delta-samples", str(self.samples), "--delta-steps", str(self.steps)]
        words += ["--full-layers", str(self.full_layers)]
        if self.page_budget is not None:
            words += ["--page-budget", str(self.page_budget)]
        words += ["--kl-samples", str(self.kl_samples), "--kl-steps", str(self.kl_steps)]
        words += ["--refine", str(self.refine)]
        return words

    def sparsity_over(self, params: SparsityParams) -> SparsityParams:
        """Parameters of the choice: those of `params`, with K as asked.

        Raises:
            ConfigError: K has no room for the recent pages.
        """
        if self.page_budget is None:
            return params
        return replace(params, page_budget=self.page_budget)
