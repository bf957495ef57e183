import json

import pytest
from typer.testing import CliRunner

from deploy import cli
from deploy.cli_eval import parse_protocols
from loadtest.facts import Run
from loadtest.quality.store import FILE_NAME, ResultStore, Trial, read_facts
from loadtest.sparsity.records import open_store as open_page_store
from loadtest.sparsity.records import read_facts as read_page_facts
from shared.errors import ConfigError
from tests.support.page_facts import page_facts
from tests.support.quality_facts import RUN, study_facts, trials

runner = CliRunner()
SMALL = [
    "eval", "niah", "--rankers", "claa", "--keep", "0.2", "--lengths", "640", "--depths", "0.5",
    "--seeds", "1",
]  # fmt: skip


def test_niah_runs_reports_and_resumes(tiny_model_dir, tmp_path):
    out = tmp_path / "found"
    flags = [*SMALL, "--model", str(tiny_model_dir), "--out", str(out), "--json"]
    result = runner.invoke(cli.app, flags)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert {row["arm"] for row in summary["rankers"]} == {"full", "claa", "random", "recency"}
    assert (out / "report.html").is_file()
    before = [fact for fact in read_facts(out) if isinstance(fact, Trial)]
    assert isinstance(runner.invoke(cli.app, flags).exception, ConfigError)
    assert runner.invoke(cli.app, [*flags, "--resume"]).exit_code == 0
    assert [fact for fact in read_facts(out) if isinstance(fact, Trial)] == before


def test_report_draws_what_another_machine_measured(tmp_path):
    ResultStore(tmp_path, resume=False).append(study_facts())
    result = runner.invoke(cli.app, ["eval", "report", str(tmp_path)])
    assert result.exit_code == 0
    assert "claa at 20% keeps 3 of 4" in result.stdout
    assert (tmp_path / "ablations.png").is_file()


def test_a_missing_matplotlib_is_said_before_anything_runs(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = runner.invoke(
        cli.app, [*SMALL, "--model", str(tiny_model_dir), "--out", str(tmp_path)]
    )
    assert isinstance(result.exception, ConfigError)
    assert "Tandem's extra eval" in str(result.exception)
    assert not (tmp_path / FILE_NAME).exists()


def test_protocols_are_read():
    assert parse_protocols("both") == ("included", "excluded")


@pytest.mark.parametrize(
    "flags", [["--keep", "lots"], ["--protocol", "maybe"], ["--lengths", "1k"], ["--keep", "1.5"]]
)
def test_values_that_cannot_be_are_refused(flags, tmp_path, tiny_model_dir):
    wanted = [*SMALL, "--model", str(tiny_model_dir), "--out", str(tmp_path), *flags]
    assert isinstance(runner.invoke(cli.app, wanted).exception, ConfigError)


def test_shards_are_merged_into_a_folder_that_report_draws(tmp_path):
    for number, scores in ((1, [1.0]), (2, [1.0, 0.0])):
        store = ResultStore(tmp_path / f"part{number}", resume=False)
        store.append([RUN, *trials("claa", scores)])
    parts = [str(tmp_path / f"part{number}") for number in (1, 2)]
    result = runner.invoke(cli.app, ["eval", "merge", str(tmp_path / "all"), *parts])
    assert result.exit_code == 0, result.output
    assert "2 results" in result.output
    assert len(read_facts(tmp_path / "all")) == 4


def test_page_results_of_several_processes_are_merged(tmp_path):
    run, *measured = page_facts()
    for number, facts in enumerate((measured[:5], measured[3:])):
        open_page_store(tmp_path / f"part{number}", resume=False).append([run, *facts])
    parts = [str(tmp_path / f"part{number}") for number in range(2)]
    result = runner.invoke(cli.app, ["eval", "merge", str(tmp_path / "all"), *parts])
    assert result.exit_code == 0, result.output
    merged = [fact for fact in read_page_facts(tmp_path / "all") if not isinstance(fact, Run)]
    assert {fact.key for fact in merged} == {fact.key for fact in measured}
    assert f"{len(merged)} results" in result.output
