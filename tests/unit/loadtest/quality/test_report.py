import json
import re
from dataclasses import replace

import pytest

from loadtest.quality.plots import draw_all
from loadtest.quality.report import page, summarise, table_rows, write_report
from loadtest.quality.store import Fact, ResultStore
from shared.errors import ConfigError
from tests.support.quality_facts import RUN, study_facts, timing, trials


@pytest.fixture
def folder(tmp_path):
    ResultStore(tmp_path, resume=False).append(study_facts())
    return tmp_path


def test_the_report_is_one_file_with_its_images_inside(folder):
    written = write_report(folder)
    assert {path.name for path in written} == {
        "summary.json", "report.html", "correlation_by_layer.png", "needle_grid.png",
        "quality_against_ttft.png", "ablations.png",
    }  # fmt: skip
    text = (folder / "report.html").read_text()
    assert text.count("data:image/png;base64,") == 4
    assert not re.findall(r"(?:src|href)='(?!data:)", text)
    assert json.loads((folder / "summary.json").read_text()) == summarise(folder)


def test_every_figure_and_table_names_command_hardware_and_commit(folder):
    text = page(summarise(folder), {"needle_grid": b"png"})
    blocks = re.findall(r"<figcaption>.*?</figcaption>|<p class='small'>(?!</p>).*?</p>", text)
    assert len(blocks) == 8
    for block in blocks:
        assert RUN.command in block
        assert RUN.hardware in block
        assert RUN.commit[:12] in block


def test_verdicts_answer_what_was_asked(folder):
    said = "\n".join(summarise(folder)["verdicts"])
    assert "2k tokens and more: claa at 20% keeps 3 of 4" in said
    assert "does not reach 95%" in said
    assert "shorter prompts: claa+floor=256 at 20% keeps 2 of 2" in said
    assert "collapse: 0, 2; the profile's window 2 to 3 holds 2 of them" in said
    assert "Control: random at 20% keeps 0.0%" in said
    assert "snapkv at 20% is ahead of claa at 20% (full's answers kept, 2k tokens and more)" in said
    assert "snapkv at 20% is ahead of claa at 20% (RULER-lite): 80.0% against 60.0%" in said
    assert "Not above random: recency at 20% on niah_noise_1key." in said


def test_nobody_ahead_is_said(tmp_path):
    facts: list[Fact] = [
        RUN,
        *trials("full", [1], rate=1.0),
        *trials("claa", [1]),
        timing("claa", 0.5),
    ]
    ResultStore(tmp_path, resume=False).append(facts)
    assert (
        "No ranker is ahead of claa at equal time to first token."
        in (summarise(tmp_path)["verdicts"])
    )


def test_the_method_of_the_profile_is_the_one_judged(tmp_path):
    run = replace(RUN, pruning={**RUN.pruning, "ranker": "fastkv"})
    facts: list[Fact] = [run, *trials("full", [1], rate=1.0), *trials("fastkv", [1])]
    ResultStore(tmp_path, resume=False).append(facts)
    assert any("fastkv at 20% keeps 1 of 1" in text for text in summarise(tmp_path)["verdicts"])


def test_table_cells_show_share_and_counts(folder):
    rows = table_rows(summarise(folder))
    (row,) = [row for row in rows if (row["ranker"], row["keep"]) == ("claa", "20%")]
    assert row["needle 2048"] == "60% (3/5)"
    assert row["kept, 2k and more"] == "75% (3/4)"
    assert row["kept, shorter"] == "-"
    assert row["TTFT ratio 4096"] == "0.600"


def test_text_from_results_is_escaped(tmp_path):
    ResultStore(tmp_path, resume=False).append([RUN, *trials("<b>claa</b>", [1], part="ruler")])
    assert "<b>claa" not in page(summarise(tmp_path), {})


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no results"):
        write_report(tmp_path)


def test_figures_are_drawn_only_of_what_is_there():
    assert draw_all([RUN, *trials("claa", [1], part="ruler")]) == {}
