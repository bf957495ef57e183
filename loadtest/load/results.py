"""The files of a run: `summary.json`, one JSON line a request, and the report."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadtest.load.judge import EXIT_CODES
from loadtest.load.record import Record
from loadtest.load.settings import LoadSettings
from loadtest.load.summary import exit_verdict, stop_text, summary_of
from shared.errors import ConfigError

SUMMARY = "summary.json"
REQUESTS = "requests.jsonl"


def check_figures(*, wanted: bool) -> None:
    """Before anything is run: can the report be drawn?

    Raises:
        ConfigError: it is wanted, and matplotlib is not installed.
    """
    if wanted and find_spec("matplotlib") is None:
        raise ConfigError(
            "the report needs matplotlib: it is not installed; install Tandem's extra loadtest, or "
            "give --no-report"
        )


def write_results(
    record: Record,
    settings: LoadSettings,
    *,
    server: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> int:
    """Writes everything and says the verdict on standard error.

    Returns:
        Exit code of the process.
    """
    summary = summary_of(record, settings, server=server, machine=machine)
    folder = settings.out
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(outcome)) + "\n" for outcome in record.outcomes]
    (folder / REQUESTS).write_text("".join(lines), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if settings.figures:
        from loadtest.load.report import write_report  # noqa: PLC0415  matplotlib only when drawn

        write_report(folder, summary, record.outcomes, settings)
    found = exit_verdict(summary)
    counts = summary["requests"]
    judged = counts["offered"] - counts["left"]
    if summary["stopped"] is not None:
        print(stop_text(summary), file=sys.stderr)
    print(
        f"{found}: {counts['met']} of {judged} requests served in time, {counts['failed']} failed; "
        f"results in {folder}",
        file=sys.stderr,
    )
    return EXIT_CODES[found]


def read_summary(path: Path) -> dict[str, Any]:
    """A run's summary, by its file or its folder.

    Raises:
        ConfigError: there is none.
    """
    file = path / SUMMARY if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        exit_verdict(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is no result of a load run ({type(error).__name__}: {error}); give the folder "
            "or the summary.json of one"
        ) from error
    return found
