"""Whether a machine runs kernels, and where figures were taken; asks torch, Triton, git alone."""

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

from shared.errors import ConfigError


def require_kernels(device: torch.device) -> None:
    """Checks that `device` is a GPU, or that Triton's interpreter stands in for one.

    Raises:
        ConfigError: neither is so, or there is no such GPU.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "PyTorch sees no CUDA device on this machine: use --device cpu", code="no_device"
        )
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ConfigError("without a GPU the interpreter runs kernels: set TRITON_INTERPRET=1")


def told_with_time() -> Callable[[str], None]:
    """Prints lines on standard error with the seconds since now: GPU time is counted."""
    started = time.monotonic()

    def told(text: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {text}", file=sys.stderr, flush=True)

    return told


def gpu_facts(module: str, device: torch.device) -> dict[str, Any]:
    """Command, commit, device and versions of a run, JSON-ready.

    Args:
        module: what `python -m` runs, where `tandem` did not.
        device: where it ran.
    """
    on_gpu = device.type == "cuda"
    program = "tandem" if Path(sys.argv[0]).name == "tandem" else f"python -m {module}"
    return {
        "command": f"{program} {shlex.join(sys.argv[1:])}".strip(),
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
