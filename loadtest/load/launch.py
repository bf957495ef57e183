"""Starts Locust in a process of its own: it patches the one it runs in."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

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
    if find_spec("locust") is None:
        raise ConfigError(
            "load runs need Locust: it is not installed; install Tandem's extra loadtest"
        )
    command = ["-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--only-summary", *flags]
    return subprocess.run(  # noqa: S603  fixed program
        [sys.executable, *command], check=False, stdout=_STDERR
    ).returncode
