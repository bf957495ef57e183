"""What the reports of the studies share: the runs behind them, and the files that they leave."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loadtest.facts import Fact, Run
from shared.errors import ConfigError


def run_rows(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """The runs of a folder, JSON-ready."""
    return [
        {"number": fact.run, "command": fact.command, "commit": fact.commit,
         "started": fact.started, "hardware": fact.hardware, "software": fact.software,
         "model": fact.model, "model_hash": fact.model_hash, "dtype": fact.dtype,
         "profile": fact.profile, "pruning": dict(fact.pruning),
         **({"sparsity": dict(fact.sparsity)} if fact.sparsity else {})}
        for fact in facts if isinstance(fact, Run)
    ]  # fmt: skip


def write_files(
    folder: Path, *, summary: Mapping[str, Any], figures: Mapping[str, bytes], page: str
) -> list[Path]:
    """Writes `summary.json`, one PNG a figure and `report.html` into a results folder."""
    written = [folder / "summary.json"]
    written[0].write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for name, png in figures.items():
        written.append(folder / f"{name}.png")
        written[-1].write_bytes(png)
    written.append(folder / "report.html")
    written[-1].write_text(page, encoding="utf-8")
    return written


def no_results(folder: Path) -> ConfigError:
    """The error of a folder without facts."""
    return ConfigError(
        f"{folder} has no results: the evaluation wrote elsewhere or has not begun; give its "
        "--out folder"
    )


def no_figures(error: ImportError) -> ConfigError:
    """The error of a machine without matplotlib."""
    return ConfigError(
        f"the figures need matplotlib ({error}): it is not installed; install Tandem's extra eval"
    )
