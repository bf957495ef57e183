"""The report of a run: one HTML file with its figures inside. Needs matplotlib."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.figures import png
from loadtest.load.outcome import MEASURES, Outcome
from loadtest.load.plots import course, distributions, growth, seconds
from loadtest.load.settings import LoadSettings
from loadtest.load.summary import highest_rate_held, stop_text
from loadtest.machine import commit_text
from loadtest.page import bullets, document, figure, number, percent, section
from loadtest.report_files import write_files


def write_report(
    folder: Path, summary: Mapping[str, Any], outcomes: Sequence[Outcome], settings: LoadSettings
) -> None:
    """Writes `report.html` and its figures beside the summary."""
    kinds = settings.classes
    figures = {
        "distributions": png(distributions(outcomes, kinds)),
        "course": png(course(outcomes, kinds)),
        "seconds": png(seconds(summary["timeline"])),
    }
    talks = {name: found["turns"] for name, found in summary["classes"].items() if found["turns"]}
    if talks:
        figures["turns"] = png(growth(talks))
    origin = load_origin(summary)
    page = document(
        "Load run",
        [
            bullets(_headlines(summary)),
            figure("Distributions", figures["distributions"], origin=origin,
                   caption="Shares of finished requests; dotted: the bounds."),
            figure("Course", figures["course"], origin=origin,
                   caption="First texts and finished requests under way over the run."),
            figure("Seconds", figures["seconds"], origin=origin,
                   caption="Requests of each second: offered by their start, others by their end."),
            *(figure("Turns", image, origin=origin,
                     caption="Prompts and first texts of conversations by turn.")
              for name, image in figures.items() if name == "turns"),
            section("Classes", _class_rows(summary), origin),
            section("Times", _time_rows(summary), origin),
            section("Turns", _turn_rows(summary), origin),
            section("Stages", _stage_rows(summary), origin),
            section("Failures", _failure_rows(summary), origin),
        ],
    )  # fmt: skip
    write_files(folder, summary=summary, figures=figures, page=page)


def _headlines(summary: Mapping[str, Any]) -> list[str]:
    counts, server = summary["requests"], summary["server"]
    lines = [
        f"Verdict: {summary['verdict']}. {counts['met']} of {counts['offered'] - counts['left']} "
        f"requests were served in time ({percent(counts['attainment'])}), {counts['failed']} "
        f"failed, {counts['left']} were left by their client.",
        f"Goodput {summary['goodput_per_s']:.2f} requests/s.",
        f"Server: {server['model']}, version {server['version']}, properties "
        f"{server['fingerprint'][:12]}.",
    ]
    if (rates := summary["throughput"]) is not None:
        lines.append(
            f"Throughput {rates['requests_per_s']:.2f} requests/s, "
            f"{rates['prompt_tokens_per_s']:.0f} prompt tokens/s, "
            f"{rates['answer_tokens_per_s']:.0f} answer tokens/s."
        )
    if (lag := summary["lag"]) is not None:
        lines.append(
            f"Generator: p99 lag {1000 * lag['p99_s']:.1f} ms, behind by {lag['share']:.1%} at the "
            f"end (at most {lag['limit']:.0%})."
        )
    if summary["stopped"] is not None:
        lines.insert(1, f"The run was {stop_text(summary)}.")
    if (found := summary["disturbance"]) is not None:
        lines.append(_disturbance_text(found))
    if len(summary["stages"]) > 1:
        held = highest_rate_held(summary)
        lines.append(f"Highest rate served in time: {number(held, digits=2)} requests/s.")
    return lines


def _class_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "class": name,
            "bounds": _bounds(found["slo"]),
            **{key: str(found[key]) for key in ("offered", "finished", "failed", "left", "met")},
            "in time": percent(found["attainment"]),
        }
        for name, found in summary["classes"].items()
    ]


def _time_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"class": name, "measure": measure, **_times(found[measure])}
        for name, found in summary["classes"].items()
        for measure in MEASURES
        if found[measure]["count"]
    ]


def _stage_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    if len(summary["stages"]) < 2:  # noqa: PLR2004  one stage is the run itself
        return []
    return [
        {
            "rate (1/s)": f"{stage['rate']:g}",
            "seconds": f"{stage['seconds']:g}",
            "offered": str(stage["offered"]),
            "in time": percent(stage["attainment"]),
            "TTFT p95 (s)": number(stage["ttft"]["p95_s"]),
            "TPOT p95 (s)": number(stage["tpot"]["p95_s"]),
        }
        for stage in summary["stages"]
    ]


def _turn_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "class": name,
            "turn": str(row["turn"] + 1),
            "offered": str(row["offered"]),
            "finished": str(row["finished"]),
            "prompt tokens": number(row["prompt_tokens"], digits=0),
            "TTFT p50 (s)": number(row["ttft"]["p50_s"]),
            "TTFT p95 (s)": number(row["ttft"]["p95_s"]),
        }
        for name, found in summary["classes"].items()
        for row in found["turns"]
    ]


def _disturbance_text(found: Mapping[str, Any]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in found["failures"].items())
    back = found["recovered_at_s"]
    return (
        f"Failures from second {found['first_failure_s']} to {found['last_failure_s']}: {reasons}. "
        f"Goodput before {number(found['before_per_s'], digits=2)} requests/s, at its lowest "
        f"{number(found['lowest_per_s'], digits=2)}, "
        + ("not recovered." if back is None else f"recovered from second {back} on.")
    )


def _failure_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"failure": failure, "requests": str(count)}
        for failure, count in summary["failures"].items()
    ]


def _times(found: Mapping[str, Any]) -> dict[str, str]:
    keys = ("mean_s", "p50_s", "p95_s", "p99_s", "max_s")
    times = {f"{key.removesuffix('_s')} (s)": number(found[key]) for key in keys}
    return {"requests": str(found["count"]), **times}


def _bounds(slo: Mapping[str, float] | None) -> str:
    if slo is None:
        return "none: its readers are slow"
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in slo.items())


def load_origin(summary: Mapping[str, Any]) -> str:
    """Command, hardware and commit of a run or of arms, as each figure states them; HTML."""
    hardware = summary["hardware"]
    return (
        f"<code>{html.escape(summary['command'])}</code> on {html.escape(hardware['cpu'])}, "
        f"{hardware['cores']} cores, commit {html.escape(commit_text(summary))}"
    )
