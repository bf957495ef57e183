"""`tandem plan validate`: a recorded load run beside its simulation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.machine import commit_text, machine_facts
from loadtest.plan.arms import arm_named
from loadtest.plan.cluster import Split
from loadtest.plan.profile_file import read_profile
from loadtest.plan.validate import read_run, validate, worst_error


def run_validate(
    profile_file: Path,
    folder: Path,
    *,
    split: Split,
    arm: str,
    balancer: str,
    within: float,
    command: str,
    as_json: bool,
) -> int:
    """Simulates the run and prints both.

    Returns:
        0 when throughput and p95 TTFT are within `within` of the measured ones, else 1.

    Raises:
        ConfigError: profile or run cannot be read, or they do not fit.
    """
    profile = read_profile(profile_file)
    found = validate(
        read_run(folder),
        profile,
        split=split,
        arm=arm_named(profile, arm),
        balancer=balancer,
    )
    worst = worst_error(found)
    ok = worst is not None and worst <= within
    result = {**found, "within": within, "ok": ok, **machine_facts(command=command)}
    if as_json:
        print(json.dumps(result))
    else:
        _print(result)
    return 0 if ok else 1


def _print(result: Mapping[str, Any]) -> None:
    table = Table("figure", "measured", "predicted", "relative error")
    for name, row in result["figures"].items():
        error = row["relative_error"]
        table.add_row(
            name,
            _number(row["measured"]),
            _number(row["predicted"]),
            "-" if error is None else f"{error:+.1%}",
        )
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{result['workload']}, {result['requests']} requests, {result['split']}, {result['arm']}"
    )
    console.print(table)
    verdict = "within" if result["ok"] else "not within"
    console.print(f"throughput and p95 TTFT are {verdict} {result['within']:.0%} of the measured")
    console.print(f"{result['command']}\ncommit {commit_text(result)}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
