"""Where figures were taken: commit, hardware and interpreter."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

_CPUINFO = Path("/proc/cpuinfo")


def machine_facts(*, command: str) -> dict[str, Any]:
    """Command, commit, hardware and interpreter of a run that begins now, JSON-ready."""
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
        "python": platform.python_version(),
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
