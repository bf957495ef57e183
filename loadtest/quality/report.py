"""One self-contained HTML file and one JSON file from a results folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.page import (
    bullets,
    document,
    figure,
    number,
    origin_of,
    percent,
    section,
    share_text,
)
from loadtest.quality.layers import depth_summary
from loadtest.quality.store import Fact, Run, read_facts
from loadtest.quality.summary import (
    CONTROLS,
    FULL,
    MIXTURE,
    RULER,
    ahead_at_equal_ttft,
    kept_answers,
    long_prompts,
    not_above_random,
    ranker_table,
    short_prompts,
    task_scores,
    trials_of,
)
from loadtest.report_files import no_figures, no_results, run_rows, write_files

WANTED_SHARE = 0.95
"""Share of full's right answers that the default method is expected to keep."""
EXCLUDED = "excluded"
_CAPTIONS = {
    "correlation_by_layer": "Needle tokens that a layer alone would keep, and agreement with the "
    "answer-informed oracle: thin, single layers by task; black, their mean; dashed, aggregates by "
    "pruning layer; green, the profile's window; red, layers that collapse.",
    "needle_grid": "Needle accuracy, depth down, prompt tokens across.",
    "quality_against_ttft": "Kept answers against time to first token; dotted lines are controls.",
    "ablations": "One parameter varied, the others as in the profile; bands are 95 % intervals.",
}
TITLE = "Which tokens matter: rankers against the oracle"


def summarise(folder: Path) -> dict[str, Any]:
    """Everything that the report says, JSON-ready.

    Raises:
        ConfigError: the folder has no results.
    """
    facts = read_facts(folder)
    if not facts:
        raise no_results(folder)
    excluded = {
        part: task_scores(trials_of(facts, part, protocol=EXCLUDED))
        for part in ("needle", RULER, MIXTURE)
    }
    return {
        "runs": run_rows(facts),
        "own_method": own_method(facts),
        "verdicts": _verdicts(facts),
        "rankers": ranker_table(facts),
        "kept_answers": _kept_by_length(facts),
        "ahead_at_equal_ttft": ahead_at_equal_ttft(facts, of=own_method(facts)),
        "not_above_random": not_above_random(facts),
        "ruler_tasks": task_scores(trials_of(facts, RULER)),
        "longbench_tasks": task_scores(trials_of(facts, "longbench")),
        "question_excluded": {part: rows for part, rows in excluded.items() if rows},
        "depth": depth_summary(facts),
        "ablations": _kept_rows(trials_of(facts, "ablation")),
    }  # fmt: skip


def write_report(folder: Path) -> list[Path]:
    """Writes `summary.json`, one PNG a figure and `report.html` into a results folder.

    Raises:
        ConfigError: the folder has no results, or matplotlib is not installed.
    """
    summary = summarise(folder)
    figures = _figures(read_facts(folder))
    return write_files(folder, summary=summary, figures=figures, page=page(summary, figures))


def page(summary: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The HTML page; images are inside it."""
    origin = origin_of(summary["runs"])
    body = [
        bullets(summary["verdicts"]),
        *(
            figure(name, png, caption=_CAPTIONS[name], origin=origin)
            for name, png in figures.items()
        ),
        section("All rankers", table_rows(summary), origin),
        section(
            "Answers of full that each arm keeps, by prompt length",
            [_kept_row(row) for row in summary["kept_answers"]], origin,
        ),
        section("Ahead at equal time to first token", _ahead_rows(summary), origin),
        section("Not above random", _random_rows(summary), origin),
        section("RULER tasks", _task_rows(summary["ruler_tasks"]), origin),
        section("LongBench tasks", _task_rows(summary["longbench_tasks"]), origin),
        *(
            section(f"Question excluded: {part}", _task_rows(rows), origin)
            for part, rows in summary["question_excluded"].items()
        ),
        section("Ablations", [_kept_row(row) for row in summary["ablations"]], origin),
        section("Runs", [_run_row(run) for run in summary["runs"]], ""),
    ]  # fmt: skip
    return document(TITLE, body)


def own_method(facts: Iterable[Fact]) -> str:
    """The method that the profile serves, which is the one judged."""
    runs = [fact for fact in facts if isinstance(fact, Run)]
    return str(runs[-1].pruning.get("ranker", "claa")) if runs else "claa"


def _figures(facts: Sequence[Fact]) -> dict[str, bytes]:
    try:
        from loadtest.quality.plots import draw_all  # noqa: PLC0415  an extra of its own
    except ImportError as error:
        raise no_figures(error) from error
    return draw_all(facts)


def _verdicts(facts: Sequence[Fact]) -> list[str]:
    """What was asked, answered in sentences."""
    own = own_method(facts)
    mixture = trials_of(facts, MIXTURE)
    said = []
    groups = {"2k tokens and more": long_prompts, "shorter prompts": short_prompts}
    for name, group in groups.items():
        for (arm, rate), share in sorted(kept_answers(group(mixture)).items()):
            if arm.split("+")[0] != own or share.value is None:
                continue
            low, high = share.interval()
            reached = "reaches" if share.value >= WANTED_SHARE else "does not reach"
            said.append(
                f"{name}: {arm} at {rate:.0%} keeps {share.right:.0f} of {share.of} of full's right"
                f" answers, {share.value:.1%} ({low:.1%} to {high:.1%}), and {reached} "
                f"{WANTED_SHARE:.0%}."
            )
    ahead = ahead_at_equal_ttft(facts, of=own)
    if mixture and not ahead:
        said.append(f"No ranker is ahead of {own} at equal time to first token.")
    said += [
        f"{row['ahead']['arm']} at {row['ahead']['rate']:.0%} is ahead of {own} at "
        f"{row['rate']:.0%} ({row['measure']}): {row['ahead']['score']:.1%} against "
        f"{row['score']:.1%}, {row['wins']} prompts won, {row['losses']} lost, sign test p = "
        f"{row['p']:.2g}."
        for row in ahead
    ]
    depth = depth_summary(facts)
    if depth is not None:
        inside = sorted(set(depth["window"]) & set(depth["collapsed"]))
        said.append(
            f"Single layers that collapse: {_listed(depth['collapsed'])}; the profile's window "
            f"{depth['window'][0]} to {depth['window'][-1]} holds {_listed(inside)} of them."
        )
    controls = {
        arm: share.value
        for arm, share in kept_answers(long_prompts(mixture)).items()
        if arm[0] in CONTROLS and share.value is not None
    }
    said += [
        f"Control: {arm} at {rate:.0%} keeps {value:.1%} of full's right answers at 2k tokens and "
        "more."
        for (arm, rate), value in sorted(controls.items())
    ]
    weak = sorted({f"{row['arm']} at {row['rate']:.0%} on {row['task']}"
                   for row in not_above_random(facts) if row["full_score"]})  # fmt: skip
    if weak:
        said.append("Not above random: " + "; ".join(weak) + ".")
    return said


def _kept_by_length(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    mixture = trials_of(facts, MIXTURE)
    rows = []
    for length in sorted({trial.length for trial in mixture}):
        here = [trial for trial in mixture if trial.length == length]
        rows += [{"length": length, **row} for row in _kept_rows(here)]
    return rows


def _kept_rows(trials: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "rate": rate, **share.to_json()}
        for (arm, rate), share in kept_answers(trials).items()
    ]


def table_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The table of all rankers as text: one row an arm and rate, columns by name."""
    rows = summary["rankers"]
    lengths = sorted({length for row in rows for length in row["needle"]}, key=int)
    timed = sorted({length for row in rows for length in row["ttft_ratio"]}, key=int)
    return [
        {
            "ranker": row["arm"],
            "keep": f"{row['rate']:.0%}",
            **{f"needle {n}": share_text(row["needle"].get(n)) for n in lengths},
            "RULER-lite": percent(row["ruler"]),
            "kept, 2k and more": share_text(row["kept_answers"]),
            "kept, shorter": share_text(row["kept_answers_short"]),
            "first-token KL": number(row["first_token_kl"]),
            "Spearman": number(row["spearman"]),
            **{
                f"TTFT ratio {n}": number(row["ttft_ratio"].get(n, {}).get("median")) for n in timed
            },
        }
        for row in rows
    ]


def _kept_row(row: Mapping[str, Any]) -> dict[str, str]:
    length = {"prompt tokens": str(row["length"])} if "length" in row else {}
    bounds = f"{row['low']:.1%} to {row['high']:.1%}"
    return {
        **length, "arm": row["arm"], "keep": f"{row['rate']:.0%}", "kept": share_text(row),
        "95 % interval": bounds,
    }  # fmt: skip


def _ahead_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "measure": row["measure"],
            "of": f"{summary['own_method']} {row['rate']:.0%}",
            "scores": percent(row["score"]),
            "ahead": f"{row['ahead']['arm']} {row['ahead']['rate']:.0%}",
            "it scores": percent(row["ahead"]["score"]),
            "TTFT ratios": f"{row['ttft_ratio']:.3f} / {row['ahead']['ttft_ratio']:.3f}",
            "prompts won / lost": f"{row['wins']} / {row['losses']}",
            "p": f"{row['p']:.2g}",
        }
        for row in summary["ahead_at_equal_ttft"]
    ]


def _random_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "task": f"{row['part']} {row['task']}",
            "ranker": row["arm"],
            "keep": f"{row['rate']:.0%}",
            "won / lost against random": f"{row['wins']} / {row['losses']} of {row['prompts']}",
            "full's score": percent(row["full_score"]),
        }
        for row in summary["not_above_random"]
    ]


def _task_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One line an arm, one column a task."""
    tasks = sorted({row["task"] for row in rows})
    arms = dict.fromkeys((row["arm"], row["rate"]) for row in rows)
    cells = {(row["task"], row["arm"], row["rate"]): row["score"] for row in rows}
    return [
        {"ranker": arm, "keep": f"{rate:.0%}",
         **{task: percent(cells.get((task, arm, rate))) for task in tasks}}
        for arm, rate in sorted(arms, key=lambda key: (key[0] != FULL, key))
    ]  # fmt: skip


def _run_row(run: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in run.items()}


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(str(layer) for layer in layers) or "none"
