"""`tandem bench serve`, `arms` and `witness`: load on a running gateway, by Locust."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.load.__main__ import main
from loadtest.load.arms import ARMS_FILE
from loadtest.load.results import read_summary
from loadtest.witness.__main__ import main as witness_main
from loadtest.witness.plan import WITNESS_FILE


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


def run_arms(
    *,
    host: str,
    out: Path,
    arms: str,
    repeats: int,
    flags: Sequence[str],
    as_json: bool,
    colocated_host: str = "",
) -> int:
    """Runs every arm in turn, and prints what they come to if asked to.

    Args:
        host: URL of the gateway.
        out: folder of the results.
        arms: names of the methods, separated by commas, the base first.
        repeats: runs of each.
        flags: further flags of `python -m loadtest.load run`.
        as_json: print the arms on standard output.
        colocated_host: URL of the gateway of the arm `colocated`; empty without it.

    Returns:
        Exit code: the worst run's, or that of arms that could not be run.
    """
    own = ["--host", host, "--out", str(out), "--arms", arms, "--repeats", str(repeats)]
    own += ["--colocated-host", colocated_host] if colocated_host else []
    return _shown(lambda: main(["arms", *own, *flags]), file=out / ARMS_FILE, as_json=as_json)


def run_witness(*, host: str, out: Path, flags: Sequence[str], as_json: bool) -> int:
    """Runs both tools by turns, and prints what they come to if asked to.

    Args:
        host: URL of the gateway.
        out: folder of the results.
        flags: further flags of `python -m loadtest.witness`.
        as_json: print the result on standard output.

    Returns:
        Exit code: the verdict's, or that of a comparison that could not be made.
    """
    own = ["--host", host, "--out", str(out)]
    return _shown(lambda: witness_main([*own, *flags]), file=out / WITNESS_FILE, as_json=as_json)


def _shown(run: Callable[[], int], *, file: Path, as_json: bool) -> int:
    """Runs, and prints the file that the run wrote if asked to; returns the run's exit code."""
    before = file.exists()
    code = run()
    if as_json and file.exists() and not before:
        print(file.read_text(encoding="utf-8"), end="")
    return code


def _written(out: Path) -> int | None:
    """When the summary of a folder was written; None without one."""
    file = out / "summary.json"
    return file.stat().st_mtime_ns if file.exists() else None
