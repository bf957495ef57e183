"""`arms`: one load offered to every method in turn, on one server, again and again.

Every repeat has a seed of its own, which all its arms share: they get the same requests at the same
moments. The order is turned around from repeat to repeat, so that what a machine does over time
falls on all arms alike. Which methods run is asked for in each request; the server stays as it is.
One arm has a server of its own: a colocated one has no prefill workers, and on the same GPUs as the
pair it has a decode worker more for each of them.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.arms_summary import arms_summary, worst
from loadtest.load.flags import add_flags, settings_of
from loadtest.load.judge import EXIT_CODES, Verdict
from loadtest.load.launch import run_locust
from loadtest.load.results import check_figures, read_summary
from loadtest.machine import machine_facts
from shared.errors import ConfigError, UnavailableError
from shared.types.options import Mode

COLOCATED = "colocated"
"""The arm whose decode workers read prompts themselves, behind a gateway of its own."""

ARMS: Mapping[str, str] = {
    COLOCATED: "colocated, full attention",
    "full": "pair, full attention",
    "prune": "pair + CLAA",
    "sparse": "pair + DELTA",
    "both": "pair + both",
}
"""What each arm is called in the report; the names of the others are the modes that requests ask
for."""

DEFAULT_ARMS = tuple(name for name in ARMS if name != COLOCATED)
"""Arms of one server."""

ARMS_FILE = "arms.json"
REPORT_FILE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmsPlan:
    """What is run.

    Raises:
        ConfigError: values that do not fit together.
    """

    arms: tuple[str, ...]
    """Names, the base first."""
    repeats: int
    """Runs of each."""
    seed: int
    """Of the first repeat; later ones count up."""
    out: Path
    """Folder that takes the results; it has none yet."""
    flags: tuple[str, ...]
    """Of every run, as `run` has them."""
    figures: bool
    """Draw the report."""
    colocated_host: str = ""
    """URL of the gateway of the colocated arm."""

    def __post_init__(self) -> None:
        if set(self.arms) - set(ARMS) or len(set(self.arms)) < len(self.arms):
            raise ConfigError(
                f"arms {','.join(self.arms)!r} cannot be run: each is one of {', '.join(ARMS)}, "
                "once; give --arms full,prune"
            )
        if len(self.arms) < 2:  # noqa: PLR2004  a comparison
            raise ConfigError("one arm cannot be compared: give --arms two or more, the base first")
        if (COLOCATED in self.arms) != bool(self.colocated_host):
            raise ConfigError(
                f"the arm {COLOCATED} and --colocated-host go together: give the URL of a gateway "
                "without prefill workers (`tandem up --prefill 0`) and name the arm, or neither"
            )
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}: give at least 1, and 3 for intervals")
        if (self.out / ARMS_FILE).exists():
            raise ConfigError(f"{self.out} has the results of other arms; give another --out")
        check_figures(wanted=self.figures)

    def order(self) -> list[tuple[int, str]]:
        """Repeat and arm of every run, in turn."""
        return [
            (repeat, arm)
            for repeat in range(self.repeats)
            for arm in (self.arms if repeat % 2 == 0 else reversed(self.arms))
        ]

    def folder(self, repeat: int, arm: str) -> Path:
        """Where one run leaves its results."""
        return self.out / "runs" / f"{arm}-{repeat + 1}"

    def run_flags(self, repeat: int, arm: str) -> list[str]:
        """All flags of one run."""
        folder = self.folder(repeat, arm)
        mode, server = Mode(arm) if arm != COLOCATED else Mode.FULL, self.server(arm)
        return [
            *self.flags, *server, "--mode", mode.value, "--seed", str(self.seed + repeat),
            "--out", str(folder), "--no-report",
        ]  # fmt: skip

    def server(self, arm: str) -> list[str]:
        """The flags that name an arm's own server, after those that name that of the others."""
        return ["--host", self.colocated_host] if arm == COLOCATED else []


def run_arms(arguments: Sequence[str]) -> int:
    """Runs every arm and writes `arms.json` and `report.html`.

    Returns:
        Exit code of the worst verdict.

    Raises:
        ConfigError: flags that do not fit together.
        UnavailableError: a run did not begin, or was broken off.
    """
    plan = _plan(arguments)
    machine = machine_facts(command=f"python -m loadtest.load arms {shlex.join(arguments)}")
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in plan.arms}
    for number, (repeat, arm) in enumerate(plan.order(), start=1):
        total = plan.repeats * len(plan.arms)
        print(f"run {number} of {total}: {ARMS[arm]}, repeat {repeat + 1}", file=sys.stderr)
        runs[arm].append(_one_run(plan, repeat, arm))
    summary = arms_summary(
        runs,
        titles=ARMS,
        order=[plan.folder(repeat, arm).name for repeat, arm in plan.order()],
        machine=machine,
    )
    (plan.out / ARMS_FILE).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if plan.figures:
        from loadtest.load.arms_report import arms_page  # noqa: PLC0415  matplotlib when drawn

        (plan.out / REPORT_FILE).write_text(arms_page(summary), encoding="utf-8")
    found = worst(Verdict(run["verdict"]) for each in runs.values() for run in each)
    print(f"{found}: results in {plan.out}", file=sys.stderr)
    return EXIT_CODES[found]


def add_arms_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `arms` itself; all others are those of `run`."""
    add = parser.add_argument
    add("--arms", default=",".join(DEFAULT_ARMS), help=f"of {', '.join(ARMS)}; the base first")
    add("--colocated-host", default="", help=f"URL of the gateway of the arm {COLOCATED}")
    add("--repeats", type=int, default=3, help="runs of each; 3 or more have intervals")
    add("--seed", type=int, default=0, help="of the first repeat; each later one counts up")
    add("--out", type=Path, default=Path("load-arms"), help="folder that takes the results")
    add("--no-report", action="store_true", help="JSON only, no figures")
    add("--mode", help=argparse.SUPPRESS)


def _plan(arguments: Sequence[str]) -> ArmsPlan:
    parser = argparse.ArgumentParser(prog="python -m loadtest.load arms", allow_abbrev=False)
    add_arms_flags(parser)
    given, flags = parser.parse_known_args(arguments)
    if given.mode is not None:
        raise ConfigError("--mode is what the arms differ in; choose them with --arms")
    plan = ArmsPlan(
        arms=tuple(name.strip() for name in given.arms.split(",")),
        repeats=given.repeats,
        seed=given.seed,
        out=given.out,
        flags=tuple(flags),
        figures=not given.no_report,
        colocated_host=given.colocated_host,
    )
    one = argparse.ArgumentParser(prog="python -m loadtest.load arms", allow_abbrev=False)
    one.add_argument("--host", required=True)
    add_flags(one)
    for arm in plan.arms:
        settings = settings_of(vars(one.parse_args(plan.run_flags(0, arm))))
        if arm == COLOCATED and settings.grpc:
            raise ConfigError(
                f"the arm {COLOCATED} has a REST address only, and this load goes over gRPC to "
                f"{settings.grpc}; leave the arm out, or take --api chat or completions"
            )
    return plan


def _one_run(plan: ArmsPlan, repeat: int, arm: str) -> dict[str, Any]:
    folder = plan.folder(repeat, arm)
    code = run_locust(plan.run_flags(repeat, arm))
    if not (folder / "summary.json").exists():
        raise UnavailableError(
            f"the run of {folder.name} did not begin (exit code {code}): its reason is above; mend "
            f"it, remove {plan.out} and start again"
        )
    summary = read_summary(folder)
    if summary["verdict"] == Verdict.INCOMPLETE:
        raise UnavailableError(
            f"the run of {folder.name} was broken off, so its arm has no pair; remove {plan.out} "
            "and start again"
        )
    return summary
