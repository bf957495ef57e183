"""The report of page policies: one file, every table and figure, each saying where it is from."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.quality.store import ResultStore
from loadtest.sparsity.plots import draw_all
from loadtest.sparsity.records import open_store
from loadtest.sparsity.report import holds_page_results, page, summarise, write_report
from loadtest.sparsity.report_rows import generation_rows, layout_rows, policy_rows
from shared.errors import ConfigError
from tests.support.page_facts import RUN, STRIP, page_facts
from tests.support.quality_facts import study_facts

FIGURES = {
    "closeness_by_budget", "recall_by_layer", "frontier", "ablations", "generation",
    "calibration_shift", "calibration_recall", "page_strip_delta_256_layer_4",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_store(tmp_path, resume=False).append(page_facts())
    return tmp_path


def test_the_report_is_one_file_with_its_images_inside(folder: Path) -> None:
    written = write_report(folder)
    assert {path.stem for path in written} == {"summary", "report", *FIGURES}
    text = (folder / "report.html").read_text()
    assert text.count("data:image/png;base64,") == len(FIGURES)
    assert not re.findall(r"(?:src|href)='(?!data:)", text)
    assert json.loads((folder / "summary.json").read_text()) == summarise(folder)


def test_every_figure_and_table_names_command_hardware_and_commit(folder: Path) -> None:
    text = page(summarise(folder), dict.fromkeys(FIGURES, b"png"))
    blocks = re.findall(r"<figcaption>.*?</figcaption>|<p class='small'>(?!</p>).*?</p>", text)
    assert len(blocks) > len(FIGURES)
    for block in blocks:
        assert RUN.command in block
        assert RUN.hardware in block
        assert RUN.commit[:12] in block


def test_every_part_has_its_table(folder: Path) -> None:
    text = page(summarise(folder), {})
    for title in (
        "All policies", "Long texts", "Free generations", "Layout modes", "Ablation: recency",
        "Frontier", "Full layers by each rule", "Arms", "Runs",
    ):  # fmt: skip
        assert f"<h2>{title}" in text
    assert all(line in re.sub("&#x27;", "'", text) for line in summarise(folder)["verdicts"][:1])


def test_the_table_of_policies_has_needles_reads_and_the_formula(folder: Path) -> None:
    rows = policy_rows(summarise(folder)["teacher"])
    assert "full" not in {row["policy"] for row in rows}
    (own,) = [row for row in rows if (row["policy"], row["tokens"]) == ("delta", "256")]
    assert own["needles after pruning"] == "100% (1/1)"
    assert own["times fewer reads"] == "2.94"
    assert own["off the formula"] == "+2.00%"
    assert own["KL"].startswith("0.0100 (0.01")
    (larger,) = [row for row in rows if (row["policy"], row["tokens"]) == ("delta", "512")]
    assert larger["off the formula"] == larger["needles after pruning"] == "-"
    (everything,) = [row for row in rows if row["policy"] == "dense" and row["KL"] != "-"]
    assert everything["tokens"] == "all"


def test_layout_modes_and_generations_are_told_against_dense(folder: Path) -> None:
    summary = summarise(folder)
    layouts = layout_rows([row for row in summary["ablation"] if row["group"] == "layout"])
    assert [(row["kept positions"], row["layout"]) for row in layouts] == [
        ("shared", "board"),
        ("shared", "segment"),
    ]
    (_, own) = generation_rows(summary["generation"])
    assert own["lost to dense's own"] == "0.0200"
    assert (own["leaves dense's text at"], own["first end of text"]) == ("17", "-")


def test_facts_that_do_not_suffice_leave_their_figures_out() -> None:
    assert draw_all([RUN]) == {}
    alone = replace(STRIP, steps=[3], num_pages=[3], pages=[[0, 2]], refreshed=[True])
    assert set(draw_all([RUN, alone])) == {"page_strip_delta_256_layer_4"}


def test_a_folder_tells_which_study_it_holds(folder: Path, tmp_path: Path) -> None:
    assert holds_page_results(folder)
    ResultStore(tmp_path / "other", resume=False).append(study_facts())
    assert not holds_page_results(tmp_path / "other")
    assert not holds_page_results(tmp_path / "nothing")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.jsonl").write_text('{"kind": "arm"}\n')
    with pytest.raises(ConfigError, match="line 1 is no result"):
        holds_page_results(tmp_path / "broken")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        write_report(tmp_path)
