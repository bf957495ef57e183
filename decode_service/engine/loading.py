"""Reading the model, in a thread of its own so that health answers meanwhile."""

import structlog
import torch

from decode_service.config import DecodeConfig
from shared.model.progress import Progress
from shared.model.weights import LoadedModel, load_model

_log = structlog.get_logger(__name__)


def load(config: DecodeConfig) -> LoadedModel:
    """Loads what the settings name; see `load_model` for its errors."""
    if config.threads:
        torch.set_num_threads(config.threads)
    return load_model(
        config.model,
        dtype=config.dtype,
        device=config.device,
        cache_dir=config.cache_dir,
        profile=config.profile,
        progress=_log_progress,
    )


def _log_progress(progress: Progress) -> None:
    """One line per tenth."""
    tenth = max(1, progress.total // 10)
    if progress.done % tenth == 0:
        _log.info("model files", stage=progress.stage, done=progress.done, total=progress.total)
