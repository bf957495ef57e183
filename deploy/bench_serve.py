"""`tandem bench serve`: load on a running gateway, by Locust."""

import json
from collections.abc import Sequence
from pathlib import Path

from loadtest.load.__main__ import main
from loadtest.load.results import read_summary


def run_serve(*, host: str, out: Path, flags: Sequence[str], as_json: bool) -> int:
    """Runs, and prints the summary if asked to.

    Args:
        host: URL of the gateway.
        out: folder of the results.
        flags: further flags of `python -m loadtest.load run`.
        as_json: print the summary on standard output.

    Returns:
        Exit code: the verdict's, or that of a run that did not begin.
    """
    before = _written(out)
    code = main(["run", "--host", host, "--out", str(out), *flags])
    if as_json and _written(out) != before:
        print(json.dumps(read_summary(out)))
    return code


def _written(out: Path) -> int | None:
    """When the summary of a folder was written; None without one."""
    file = out / "summary.json"
    return file.stat().st_mtime_ns if file.exists() else None
