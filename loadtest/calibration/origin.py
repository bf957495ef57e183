"""Where the figures of a calibration come from, and how its profile gets onto the disk."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from loadtest.micro.measure import provenance
from shared.errors import ConfigError
from shared.model.weights import LoadedModel


def origin(loaded: LoadedModel, *, command: str, commit: str) -> dict[str, Any]:
    """Command, commit, hardware, torch and dtype; the same for the same machine and code.

    Args:
        loaded: the model that was measured.
        command: that gives the same figures.
        commit: of the code; empty asks git.
    """
    found = provenance(command=command)
    changed = " with uncommitted changes" if found["uncommitted_changes"] else ""
    device = loaded.model.device
    cpu = str(found["hardware"]["cpu"])
    return {
        "command": command,
        "commit": commit or f"{found['commit'] or 'unknown'}{changed}",
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "torch": torch.__version__,
        "dtype": loaded.model.geometry().dtype,
    }


def write_profile(path: Path, text: str) -> None:
    """Writes a profile whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
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
