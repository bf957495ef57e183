"""`tandem eval sparse`: runs the study of page policies behind progress bars, then its report."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.eval_bars import PartBars, print_report, require_matplotlib
from loadtest.script import print_unfinished
from loadtest.sparsity.evaluation import EvaluationRequest, run_evaluation
from loadtest.sparsity.report import summarise, write_report
from loadtest.sparsity.report_rows import policy_rows
from loadtest.sparsity.settings import StudySettings


def run_sparse_eval(
    *, request: Mapping[str, Any], settings: Mapping[str, Any], as_json: bool
) -> None:
    """Runs the study that `settings` describes and reports on everything in its folder.

    Args:
        request: fields of `EvaluationRequest`, the results folder `out` among them.
        settings: fields of `StudySettings`.
        as_json: prints the summary as JSON.

    Raises:
        ConfigError: a setting does not fit, or matplotlib is not installed.
        ModelLoadError: the model cannot be loaded.
    """
    require_matplotlib("python -m loadtest.sparsity")
    asked = EvaluationRequest(
        settings=StudySettings(**settings), command=shlex.join(["tandem", *sys.argv[1:]]), **request
    )
    with PartBars() as bars:
        finished = run_evaluation(asked, progress=bars)
    run_sparse_report(asked.out, as_json=as_json)
    if not finished:
        print_unfinished(asked.out)


def run_sparse_report(folder: Path, *, as_json: bool) -> None:
    """Writes the report of a results folder and prints its table and verdicts.

    Raises:
        ConfigError: the folder has no results, or matplotlib is not installed.
    """
    written, summary = write_report(folder), summarise(folder)
    rows = policy_rows(summary["teacher"])
    print_report(summary, rows=rows, written=written, as_json=as_json)
