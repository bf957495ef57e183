"""`tandem eval sparse` and the report of its folder, on the tiny model."""

import json
from pathlib import Path

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from deploy import cli
from deploy.cli_eval_sparse import sparse, study_values
from loadtest.sparsity.__main__ import _parser
from loadtest.sparsity.records import ForcedFact, open_store, read_facts
from loadtest.sparsity.settings import StudySettings
from shared.errors import ConfigError
from tests.support.page_facts import page_facts

runner = CliRunner()
SMALL = [
    "eval", "sparse", "--parts", "teacher", "--policies", "delta,recency", "--budgets", "10",
    "--windows", "1", "--context", "300", "--steps", "6", "--sample-every", "3",
]  # fmt: skip


def test_it_runs_reports_and_resumes(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "found"
    flags = [*SMALL, "--model", str(tiny_model_dir), "--out", str(out), "--json"]
    result = runner.invoke(cli.app, flags)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert {row["arm"] for row in summary["teacher"]} == {"dense", "delta", "recency"}
    assert summary["runs"][0]["sparsity"]["policy"] == "delta"
    assert (out / "report.html").is_file()
    before = [fact for fact in read_facts(out) if isinstance(fact, ForcedFact)]
    assert isinstance(runner.invoke(cli.app, flags).exception, ConfigError)
    assert runner.invoke(cli.app, [*flags, "--resume"]).exit_code == 0
    assert [fact for fact in read_facts(out) if isinstance(fact, ForcedFact)] == before


def test_the_time_limit_is_told(tiny_model_dir: Path, tmp_path: Path) -> None:
    flags = [*SMALL, "--model", str(tiny_model_dir), "--out", str(tmp_path / "found")]
    runner.invoke(cli.app, flags)
    result = runner.invoke(
        cli.app, [*flags, "--resume", "--max-seconds", "0", "--budgets", "10,11"]
    )
    assert result.exit_code == 0, result.output
    assert "goes on" in result.stderr


def test_the_report_recognises_the_folder(tmp_path: Path) -> None:
    open_store(tmp_path, resume=False).append(page_facts())
    result = runner.invoke(cli.app, ["eval", "report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "256 tokens, delta against quest" in result.stdout
    assert (tmp_path / "frontier.png").is_file()


def test_the_flags_are_those_of_the_plain_script() -> None:
    plain = {text for action in _parser()._actions for text in action.option_strings}
    alone = typer.Typer()
    alone.command()(sparse)
    command = typer.main.get_command(alone)
    own = {text for option in command.params for text in option.opts if "completion" not in text}
    assert plain - {"-h", "--help", "--report"} == own - {"--json"}


def test_flags_that_were_not_given_leave_the_studys_defaults() -> None:
    assert study_values({"windows": None, "parts": "", "budgets": ""}) == {}
    values = study_values(
        {"parts": "teacher, long", "budgets": "8,16", "full_layers": "0,1;0,1,2", "steps": 9}
    )
    assert StudySettings(**values) == StudySettings(
        parts=("teacher", "long"), budgets=(8, 16), full_layers=((0, 1), (0, 1, 2)), steps=9
    )
    with pytest.raises(ConfigError, match="--long-budgets cannot be"):
        study_values({"long_budgets": "many"})


def test_a_missing_matplotlib_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = runner.invoke(cli.app, [*SMALL, "--out", str(tmp_path / "none")])
    assert isinstance(result.exception, ConfigError)
    assert "python -m loadtest.sparsity" in str(result.exception)
    assert not (tmp_path / "none").exists()
