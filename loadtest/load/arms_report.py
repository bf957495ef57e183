"""The report of several arms: one HTML page with its figures inside. Needs matplotlib."""

from collections.abc import Mapping
from typing import Any

from loadtest.figures import png
from loadtest.load.arms_plots import distributions, goodput, ratios
from loadtest.load.bootstrap import MIN_RUNS
from loadtest.load.compare import ratio_text
from loadtest.load.report import load_origin
from loadtest.page import bullets, document, figure, number, percent, section


def arms_page(summary: Mapping[str, Any]) -> str:
    """The whole page."""
    arms, comparison = summary["arms"], summary["comparison"]
    titles = {name: arm["title"] for name, arm in arms.items()}
    origin = load_origin(summary)
    kinds = list(next(iter(arms.values()))["classes"])
    return document(
        "Load by arm",
        [
            bullets(_headlines(summary)),
            figure("Goodput", png(goodput(arms)), origin=origin,
                   caption="Requests served in time a second; lines join runs of one repeat."),
            figure("Ratios", png(ratios(comparison, titles)), origin=origin,
                   caption="Ratios of means with 95 % intervals over paired repeats."),
            *(figure(f"Times of {kind}", png(distributions(arms, kind)), origin=origin,
                     caption="Shares of finished requests of all repeats; dotted: the bound.")
              for kind in kinds),
            section("Arms", _arm_rows(arms), origin),
            section("Times", _time_rows(arms), origin),
            section("Comparison", _ratio_rows(comparison, titles), origin),
            section("Runs", _run_rows(arms), origin),
        ],
    )  # fmt: skip


def _headlines(summary: Mapping[str, Any]) -> list[str]:
    settings, server = summary["settings"], summary["server"]
    repeats = len(next(iter(summary["arms"].values()))["runs"])
    lines = [
        f"Worst verdict: {summary['verdict']}.",
        f"Workload {settings['workload']} over {settings['api']}, {repeats} repeats of every arm, "
        f"in the order {', '.join(summary['order'])}; the arms of a repeat got the same requests "
        "at the same moments.",
        f"Server: {server['model']}, version {server['version']}, properties "
        f"{server['fingerprint'][:12]}.",
        _servers(summary["arms"]),
    ]
    if repeats < MIN_RUNS:
        lines.append(f"Fewer than {MIN_RUNS} repeats say nothing about spread: no intervals.")
    if not summary["one_server"]:
        lines.append("The server's properties changed between runs: the arms are not comparable.")
    return lines


def _servers(arms: Mapping[str, Any]) -> str:
    """Who answered whom."""
    by_host: dict[str, list[str]] = {}
    for arm in arms.values():
        by_host.setdefault(arm["host"], []).append(arm["title"])
    if len(by_host) == 1:
        return "One server answered all arms."
    who = "; ".join(f"{host}: {', '.join(titles)}" for host, titles in by_host.items())
    return f"Two servers, to be compared on as many GPUs or cores each: {who}."


def _arm_rows(arms: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "arm": arm["title"],
            "class": kind,
            "asked for": ", ".join(f"{key} {value}" for key, value in arm["overrides"].items()),
            "prompt tokens kept": percent(found["kept_share"]),
            "KV slots read": percent(found["attended_share"]),
            "failures": ", ".join(f"{n} {name}" for name, n in arm["failures"].items()) or "none",
        }
        for arm in arms.values()
        for kind, found in arm["classes"].items()
    ]


def _time_rows(arms: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "arm": arm["title"],
            "class": kind,
            "requests": str(found["ttft"]["count"]),
            **{
                f"{measure.upper()} {key.removesuffix('_s')} (s)": number(found[measure][key])
                for measure in ("ttft", "tpot")
                for key in ("p50_s", "p95_s", "p99_s")
            },
        }
        for arm in arms.values()
        for kind, found in arm["classes"].items()
    ]


def _ratio_rows(comparison: Mapping[str, Any], titles: Mapping[str, str]) -> list[dict[str, str]]:
    return [
        {
            "metric": metric,
            **{titles[arm]: number(mean) for arm, mean in row["means"].items()},
            **{
                f"{titles[arm]} / {titles[comparison['base']]}": ratio_text(ratio)
                for arm, ratio in row["ratios"].items()
            },
        }
        for metric, row in comparison["metrics"].items()
    ]


def _run_rows(arms: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "arm": arm["title"],
            "repeat": str(repeat),
            "seed": str(run["seed"]),
            "verdict": run["verdict"],
            "goodput (1/s)": number(run["goodput_per_s"]),
            "in time": percent(run["requests"]["attainment"]),
            "failed": str(run["requests"]["failed"]),
            "ended early": "-" if run["stopped"] is None else run["stopped"]["reason"],
        }
        for arm in arms.values()
        for repeat, run in enumerate(arm["runs"], start=1)
    ]
