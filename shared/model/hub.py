"""Models from the Hugging Face hub; a snapshot that is already on this machine needs no network."""

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from shared.errors import ModelLoadError
from shared.model.progress import Progress, ProgressFn

_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"]
_FILES += ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


def link_snapshot(repo_id: str, target: Path, *, progress: ProgressFn) -> None:
    """Downloads a repository's model files to the hub's cache and links `target` to them.

    Raises:
        ModelLoadError: the repository does not exist or cannot be reached.
    """
    progress(Progress("download", 0, 0))
    try:
        snapshot = snapshot_download(repo_id, allow_patterns=_FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise ModelLoadError(
            f"model {repo_id!r} could not be had from the hub ({type(error).__name__}): the name "
            "is wrong, the model "
            "needs a login, or there is no network and no local copy; check the name and "
            "HF_TOKEN, or name a folder"
        ) from error
    _link(Path(snapshot), target)
    progress(Progress("download", 1, 1))


def _link(snapshot: Path, target: Path) -> None:
    """Points `target` at the snapshot in one step, so that no reader sees it missing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.symlink_to(snapshot, target_is_directory=True)
    fresh.replace(target)
