"""What the evaluations share on the command line: progress bars, report, check for matplotlib."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn
from rich.table import Table

from shared.errors import ConfigError


def require_matplotlib(script: str) -> None:
    """Says before anything runs that a report could not be drawn.

    Args:
        script: what measures without it.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "the report's figures need matplotlib, which is not installed: install "
            f"Tandem's extra eval, or measure with `{script}` and report elsewhere"
        )


class PartBars:
    """One progress bar a part, on standard error."""

    def __init__(self) -> None:
        self._progress = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "PartBars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, part: str, *, done: int, total: int) -> None:
        """Moves the part's bar."""
        if part not in self._tasks:
            self._tasks[part] = self._progress.add_task(part, total=total)
        self._progress.update(self._tasks[part], completed=done)


def print_report(
    summary: Mapping[str, Any],
    *,
    rows: Sequence[Mapping[str, str]],
    written: Sequence[Path],
    as_json: bool,
) -> None:
    """Prints a study's summary as JSON, or its main table, verdicts and files."""
    if as_json:
        print(json.dumps(summary))
        return
    console = Console(soft_wrap=True, highlight=False)
    if rows:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
    for verdict in summary["verdicts"]:
        console.print(verdict, markup=False)
    console.print(f"written: {', '.join(str(path) for path in written)}", markup=False)
