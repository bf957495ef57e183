"""`tandem eval`: runs an evaluation behind progress bars, then writes and prints its report."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.eval_bars import PartBars, print_report, require_matplotlib
from loadtest.quality.evaluation import EvaluationRequest, run_evaluation
from loadtest.quality.report import summarise, table_rows, write_report
from loadtest.quality.settings import StudySettings
from loadtest.quality.tasks.sample import Protocol


def run_eval(
    *,
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path,
    resume: bool,
    as_json: bool,
) -> None:
    """Runs the study that `settings` describes and reports on everything in its folder.

    Args:
        model: fields of `EvaluationRequest` that say what is measured.
        settings: fields of `StudySettings`; protocols by name.
        out: results folder.
        resume: go on with results that are in it.
        as_json: prints the summary as JSON.

    Raises:
        ConfigError: a setting does not fit, or matplotlib is not installed.
        ModelLoadError: the model cannot be loaded.
    """
    require_matplotlib("python -m loadtest.quality")
    values = {**settings}
    if "protocols" in values:
        values["protocols"] = tuple(Protocol(name) for name in values["protocols"])
    request = EvaluationRequest(
        out=out,
        settings=StudySettings(**values),
        resume=resume,
        command=shlex.join(["tandem", *sys.argv[1:]]),
        **model,
    )
    with PartBars() as bars:
        run_evaluation(request, progress=bars)
    run_report(out, as_json=as_json)


def run_report(folder: Path, *, as_json: bool) -> None:
    """Writes the report of a results folder and prints its table.

    Raises:
        ConfigError: the folder has no results, or matplotlib is not installed.
    """
    written, summary = write_report(folder), summarise(folder)
    print_report(summary, rows=table_rows(summary), written=written, as_json=as_json)
