"""`tandem model pull|random|list`: the models on this machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from shared.errors import ConfigError
from shared.model.catalog import list_models as catalog_models
from shared.model.catalog import pull
from shared.model.progress import Progress as Report
from shared.model.progress import ProgressFn
from shared.model.random_folder import save_drawn_model
from shared.model.shapes import shape_named

_MB = 1e6
_PERCENT_STEP = 10


def pull_model(name: str, *, cache_dir: Path | None) -> None:
    """Fetches a model with a progress bar, or one line per 10 % when standard error is no terminal.

    Raises:
        ModelLoadError: the name is unknown or the model cannot be had.
    """
    console = Console(stderr=True)
    with _progress(console, name) as report:
        folder = pull(name, cache_dir=cache_dir, progress=report)
    print(folder)


def write_random(target: Path, *, shape: str, seed: int) -> None:
    """Writes a model folder of a known shape whose weights are drawn from a seed; prints its path.

    Raises:
        ConfigError: no such shape or seed, or something is at the path.
    """
    config = shape_named(shape)
    if target.exists():
        raise ConfigError(f"{target} exists: a model folder is not written over; name another one")
    print(save_drawn_model(target, config, seed=seed))


def list_models(*, cache_dir: Path | None, as_json: bool) -> None:
    """Prints the catalog and the cache. JSON: {models: [{name, folder, size_bytes, note}]}."""
    models = catalog_models(cache_dir)
    if as_json:
        rows = [
            {
                "name": model.name,
                "folder": str(model.folder) if model.folder else None,
                "size_bytes": model.size_bytes,
                "note": model.note,
            }
            for model in models
        ]
        print(json.dumps({"models": rows}))
        return
    table = Table("name", "on disk", Column("folder", overflow="fold"), "note")
    for model in models:
        size = f"{model.size_bytes / _MB:.0f} MB" if model.folder else "-"
        table.add_row(model.name, size, str(model.folder or "not pulled"), model.note)
    Console().print(table)


@contextmanager
def _progress(console: Console, name: str) -> Iterator[ProgressFn]:
    if not console.is_terminal:
        yield _line_reporter(console, name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        tasks = {}

        def report(update: Report) -> None:
            if update.stage not in tasks:
                tasks[update.stage] = bar.add_task(f"{name}: {update.stage}")
            total = update.total or None
            bar.update(tasks[update.stage], completed=update.done, total=total)

        yield report


def _line_reporter(console: Console, name: str) -> ProgressFn:
    shown: dict[str, int] = {}

    def report(update: Report) -> None:
        percent = 100 * update.done // update.total if update.total else 0
        step = percent - percent % _PERCENT_STEP
        if shown.get(update.stage, -1) < step:
            shown[update.stage] = step
            console.print(f"{name}: {update.stage} {step} %", highlight=False)

    return report
