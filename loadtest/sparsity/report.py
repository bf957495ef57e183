"""One self-contained HTML file and one JSON file from the results of a study of page policies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.facts import first_run
from loadtest.page import bullets, document, figure, origin_of, section
from loadtest.report_files import no_figures, no_results, run_rows, write_files
from loadtest.sparsity.records import (
    ABLATION,
    GENERATION,
    LONG,
    TEACHER,
    CalibrationFact,
    SparsityFact,
    read_facts,
)
from loadtest.sparsity.report_rows import (
    ablation_rows,
    arm_rows,
    calibration_rows,
    frontier_rows,
    generation_rows,
    layout_rows,
    long_rows,
    policy_rows,
)
from loadtest.sparsity.summary import study_summary

TITLE = "Which pages matter: page policies against dense decode"
LAYOUT = "layout"
"""Group of the ablation that compares layout modes."""
_STRIP = "page_strip"
_CAPTIONS = {
    "closeness_by_budget": "Divergence from dense decode and agreement with its top token over "
    "known prose, by budget; dotted lines are controls.",
    "recall_by_layer": "Share of a layer's true attention that lies in what it read; white, layers "
    "that read everything.",
    "frontier": "Every configuration over a whole prefill: agreement with dense against what it "
    "reads; named and joined, those that none beats in both.",
    "ablations": "Agreement with dense where one thing is varied; bars are 95 % intervals.",
    "generation": "Free generations scored by dense decode, 256 tokens a point.",
    "calibration_shift": "Attention shift from one layer to the next, and the full layers that "
    "each rule chooses.",
    "calibration_recall": "Share of a layer's attention in the pages that an earlier layer "
    "chooses; red, the cells that the chosen full layers use.",
    _STRIP: "Pages that one layer reads, step by step.",
}


def holds_page_results(folder: Path) -> bool:
    """Whether a folder's results are of page policies: such a study notes the profile's own.

    Raises:
        ConfigError: the results begin with no run.
    """
    first = first_run(folder)
    return first is not None and bool(first.sparsity)


def summarise(folder: Path) -> dict[str, Any]:
    """Everything that the report says, JSON-ready.

    Raises:
        ConfigError: the folder has no results.
    """
    facts = _facts(folder)
    curves = next((fact.curves for fact in facts if isinstance(fact, CalibrationFact)), None)
    return {
        "runs": run_rows(facts),
        **study_summary(facts),
        "calibration": None if curves is None else dict(curves),
    }  # fmt: skip


def write_report(folder: Path) -> list[Path]:
    """Writes `summary.json`, one PNG a figure and `report.html` into a results folder.

    Raises:
        ConfigError: the folder has no results, or matplotlib is not installed.
    """
    summary = summarise(folder)
    figures = _figures(_facts(folder))
    return write_files(folder, summary=summary, figures=figures, page=page(summary, figures))


def page(summary: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The HTML page; images are inside it."""
    origin = origin_of(summary["runs"])
    ablations = [row for row in summary[ABLATION] if row["group"] != LAYOUT]
    layouts = [row for row in summary[ABLATION] if row["group"] == LAYOUT]
    tables = {
        "All policies": policy_rows(summary[TEACHER]),
        "Long texts in which early entries matter": long_rows(summary[LONG]),
        "Free generations": generation_rows(summary[GENERATION]),
        "Layout modes after pruning": layout_rows(layouts),
        **{
            f"Ablation: {group}": ablation_rows([r for r in ablations if r["group"] == group])
            for group in dict.fromkeys(row["group"] for row in ablations)
        },
        "Frontier over a whole prefill": frontier_rows(summary["frontier"]),
        "Full layers by each rule of the calibration": calibration_rows(summary["calibration"]),
    }
    parts = [
        bullets(summary["verdicts"]),
        section("All policies", tables.pop("All policies"), origin),
        *(
            figure(name, png, caption=_caption(name), origin=origin)
            for name, png in figures.items()
        ),
        *(section(title, rows, origin) for title, rows in tables.items()),
        section("Arms", arm_rows(summary["arms"]), ""),
        section("Runs", [{k: str(v) for k, v in run.items()} for run in summary["runs"]], ""),
    ]
    return document(TITLE, parts)


def _facts(folder: Path) -> list[SparsityFact]:
    facts = read_facts(folder)
    if not facts:
        raise no_results(folder)
    return facts


def _figures(facts: Sequence[SparsityFact]) -> dict[str, bytes]:
    try:
        from loadtest.sparsity.plots import draw_all  # noqa: PLC0415  an extra of its own
    except ImportError as error:
        raise no_figures(error) from error
    return draw_all(facts)


def _caption(name: str) -> str:
    return _CAPTIONS[_STRIP if name.startswith(_STRIP) else name]
