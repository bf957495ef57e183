"""What the studies ask for alike: the model, the results folder, how far a part is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shared.model.weights import LoadedModel, load_model


class Progress(Protocol):
    """Is told how far a part is."""

    def __call__(self, part: str, *, done: int, total: int) -> None:
        """`done` of `total` units of a part's work: prompts, arms of texts, or answers wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """On what a study is measured, and where results go."""

    out: Path
    """Results folder."""
    model: str = "smollm2"
    """Catalog name, folder or hub id."""
    device: str = "cpu"
    """PyTorch device."""
    dtype: str = "float32"
    """Type of weights and KV."""
    profile: str = ""
    """Profile name or TOML file; empty: the model's own."""
    cache_dir: Path | None = None
    """Model cache."""
    resume: bool = False
    """Go on with results that are there."""
    command: str = ""
    """Command line, for the record."""
    commit: str = ""
    """Commit of the code, where it is no git checkout."""

    def load(self) -> LoadedModel:
        """The model with its profile.

        Raises:
            ConfigError: the profile does not fit.
            ModelLoadError: the model cannot be loaded.
        """
        return load_model(
            self.model,
            dtype=self.dtype,
            device=self.device,
            cache_dir=self.cache_dir,
            profile=self.profile,
        )
