"""Where a benchmark of kernels was taken; asks torch and git, so that nothing else is needed."""

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton


def device_facts(device: torch.device, *, command: str) -> dict[str, Any]:
    """Command with this run's arguments, commit, device and versions, JSON-ready."""
    on_gpu = device.type == "cuda"
    return {
        "command": f"{command} {' '.join(sys.argv[1:])}".strip(),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu (interpreter)",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments of our own
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
