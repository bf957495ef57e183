"""What every micro-benchmark of an engine states about where it was taken."""

from importlib.metadata import version
from typing import Any

import torch

from loadtest.machine import machine_facts


def provenance(*, command: str) -> dict[str, Any]:
    """Commit, hardware, software and command of a run, JSON-ready."""
    return {
        **machine_facts(command=command),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
