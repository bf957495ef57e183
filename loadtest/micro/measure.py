"""What every micro-benchmark states: paired medians, their spread, and where they were taken."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

_CPUINFO = Path("/proc/cpuinfo")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest of some repeats."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def paired_ratios(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Spread of the ratios of values that were taken in the same repeat."""
    return spread([a / b for a, b in zip(of, to, strict=True)])


def provenance(*, command: str) -> dict[str, Any]:
    """Commit, hardware, software and command of a run, JSON-ready."""
    return {
        "command": command,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "load_average": list(os.getloadavg()),
        },
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _git(*arguments: str) -> str:
    """Output of a git command in this checkout; empty where there is no git or no checkout."""
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments of our own
            ["git", *arguments],  # noqa: S607  the user's git
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
