"""How a role's process is started: interpreter line, allocator variables, end with its supervisor.

A role runs as `python -m <module>`. By default glibc's allocator maps and unmaps every large
block, which costs the KV path most of its speed, so its thresholds are raised; they are read at
process start, hence the exec.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

ROLE_PACKAGES: Mapping[str, str] = {
    "prefill": "prefill_service",
    "decode": "decode_service",
    "gateway": "gateway",
}

ROLE_MODULES: Mapping[str, str] = {**ROLE_PACKAGES, "decode": "deploy.decode_worker"}
"""What a role's process runs: a decode worker may bring another service's engine along."""

_MIB = 1024 * 1024
ALLOCATOR_VARIABLES: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(512 * _MIB),
    "MALLOC_TRIM_THRESHOLD_": str(1024 * _MIB),
    "MALLOC_TOP_PAD_": str(64 * _MIB),
}

_PR_SET_PDEATHSIG = 1
_WITH_PARENT = "--end-with-parent"


def role_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of `environ` with the allocator variables; values that are already set stay."""
    return {**ALLOCATOR_VARIABLES, **environ}


def role_command(role: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a role; `-P` keeps the current folder off the import path."""
    return [sys.executable, "-P", "-m", ROLE_MODULES[role], *arguments]


def supervised_command(role: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a role that gets SIGTERM when its supervisor dies without a word."""
    return [sys.executable, "-P", "-m", "deploy.launch", _WITH_PARENT, role, *arguments]


def exec_role(role: str, arguments: Sequence[str]) -> None:
    """Replaces this process by the role; signals and exit code are then the role's own."""
    command = role_command(role, arguments)
    os.execve(command[0], command, role_environment(os.environ))  # noqa: S606  no shell is wanted


def _end_with_parent() -> None:
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the request was in force
            sys.exit(1)


def main(argv: Sequence[str]) -> None:
    """Runs `[--end-with-parent] ROLE ARG...`."""
    rest = list(argv)
    if rest and rest[0] == _WITH_PARENT:
        _end_with_parent()
        rest = rest[1:]
    exec_role(rest[0], rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
