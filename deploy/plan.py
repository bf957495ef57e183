"""`tandem plan`: simulates, and prints its tables."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.machine import commit_text, machine_facts
from loadtest.plan.planning import PlanSettings, plan
from loadtest.plan.profile_file import read_profile
from loadtest.plan.search import MOST_GPUS

_COLUMNS = (
    "arm", "GPUs", "split", "req/s", "per GPU", "TTFT p50/p95 s", "TPOT p50/p95 ms", "goodput/s",
    "in time", "busy P/D",
)  # fmt: skip

_WIDTH = 120


def run_plan(profile_file: Path, settings: PlanSettings, *, command: str, as_json: bool) -> None:
    """Plans and prints.

    Raises:
        ConfigError: the profile is none, or does not fit the workload.
    """
    profile = read_profile(profile_file)
    result = {**plan(profile, settings), **machine_facts(command=command)}
    result["profile_origin"] = dict(profile.origin)
    if as_json:
        print(json.dumps(result))
        return
    print_plan(result)


def print_plan(result: Mapping[str, Any]) -> None:
    """Prints the tables of a plan."""
    console = Console(soft_wrap=True, highlight=False)
    # Ten columns of figures: lines that a terminal breaks are better than cells that are cut.
    console.width = max(console.width, _WIDTH)
    if result["rate"] is not None:
        console.print(f"Fewest GPUs for {result['rate']:g} requests/s, and their best splits")
        console.print(_table(_smallest_rows(result["arms"])))
    if any(arm["sizes"] for arm in result["arms"]):
        console.print("Highest rate that is served in time")
        console.print(
            _table([(arm["name"], row) for arm in result["arms"] for row in arm["sizes"]])
        )
    bounds = "; ".join(
        f"{name} {bound['ttft']:g} s to first token, {1000 * bound['tpot']:g} ms a token"
        for name, bound in result["slo"].items()
    )
    console.print(f"{result['attainment']:.0%} of each class in time: {bounds}")
    for arm in result["arms"]:
        if arm["idle_attainment"] < result["attainment"]:
            console.print(
                f"{arm['name']}: even an idle cluster serves only {arm['idle_attainment']:.0%} of "
                "a class in time; loosen its bounds (--slo) or choose other sizes"
            )
        beyond = max(arm["beyond_measured"].values())
        if beyond:
            console.print(
                f"{arm['name']}: {beyond:.0%} of the requests are longer than was measured; their "
                "times are drawn on as a line"
            )
    console.print(f"{result['command']}\nseed {result['seed']}, commit {commit_text(result)}")


def _smallest_rows(arms: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    rows = []
    for arm in arms:
        found = arm["smallest"]
        rows.append((arm["name"], found))
        others = [row for row in found["candidates"] if row["split"] != found["split"]]
        rows += [("", row) for row in others]
    return rows


def _table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = Table(*_COLUMNS)
    for name, row in rows:
        if row["split"] is None:
            gpus = f"more than {MOST_GPUS}" if row["gpus"] is None else str(row["gpus"])
            table.add_row(name, gpus, "none", *[""] * (len(_COLUMNS) - 3))
            continue
        table.add_row(
            name,
            str(row["gpus"]),
            row["split"],
            f"{row['rate']:.3g}",
            f"{row['rate_per_gpu']:.3g}",
            _pair(row["ttft_p50_s"], row["ttft_p95_s"], "{:.3f}"),
            _pair(row["tpot_p50_s"], row["tpot_p95_s"], "{:.1f}", scale=1000),
            f"{row['goodput_per_s']:.3g}",
            f"{row['attainment']:.1%}",
            f"{row['prefill_use']:.0%}/{row['decode_use']:.0%}",
        )
    return table


def _pair(first: float | None, second: float | None, form: str, *, scale: float = 1) -> str:
    values = ["-" if value is None else form.format(scale * value) for value in (first, second)]
    return "/".join(values)
