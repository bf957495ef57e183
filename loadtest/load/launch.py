"""Starts Locust in a process of its own: it patches the one it runs in."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from shared.errors import ConfigError

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_STDERR = 2


def run_locust(flags: Sequence[str]) -> int:
    """One run without Locust's page; what Locust prints goes to standard error.

    Args:
        flags: of the run, --host among them.

    Returns:
        Exit code: the verdict's, or that of a run that did not begin.

    Raises:
        ConfigError: Locust is not installed.
    """
    command = [*_locust(), "--headless", "--only-summary", *flags]
    return subprocess.run(  # noqa: S603  fixed program
        command, check=False, stdout=_STDERR
    ).returncode


def become_locust(flags: Sequence[str]) -> NoReturn:
    """One run with Locust's page, which stays until a signal ends it; then the results are written.

    This process becomes Locust, so that the signal of a container's engine reaches it.

    Args:
        flags: of the run, --host among them.

    Raises:
        ConfigError: Locust is not installed.
    """
    command = [*_locust(), "--autostart", *flags]
    os.execv(command[0], command)  # noqa: S606  a fixed program, and no shell is wanted


def check_locust() -> None:
    """Before anything is run: is there a Locust?

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("locust") is None:
        raise ConfigError(
            "load runs need Locust: it is not installed; install Tandem's extra loadtest"
        )


def _locust() -> list[str]:
    check_locust()
    return [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE)]
