"""What is compared: a load that both tools can offer, how often, and how close they must come."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.bootstrap import MIN_RUNS
from loadtest.load.flags import add_flags, settings_of
from loadtest.load.settings import Api, LoadSettings
from shared.errors import ConfigError

WITNESS_FILE = "witness.json"
OURS = "ours"
THEIRS = "theirs"
WARM_UP = "warm-up"

_FIXED = {"--api", "--grpc", "--no-report", "--keep-going", "--max-in-flight", "--closed"}
"""Flags of a run that a witness has no equal of, or that are always the same here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessPlan:
    """What is run.

    Raises:
        ConfigError: values that do not fit together, or a load that a witness cannot offer.
    """

    repeats: int
    """Runs of each tool."""
    seed: int
    """Of the first repeat; later ones count up."""
    within: float
    """Largest distance of the ratio of the two p50 from 1."""
    out: Path
    """Folder that takes the results; it is empty, or not there yet."""
    flags: tuple[str, ...]
    """Of every run, as `run` of the load suite has them."""

    def __post_init__(self) -> None:
        if self.repeats < MIN_RUNS:
            raise ConfigError(
                f"repeats is {self.repeats}: there is no interval below {MIN_RUNS}; give more"
            )
        if not 0 < self.within < 1:
            raise ConfigError(f"within is {self.within}: it is a share; give 0.1 for 10 %")
        if self.out.exists() and any(self.out.iterdir()):
            raise ConfigError(f"{self.out} has files of other runs in it; give another --out")
        _check_load(self.settings(0))

    def order(self) -> list[tuple[int, str]]:
        """Repeat and tool of every run; who begins changes from repeat to repeat."""
        return [
            (repeat, tool)
            for repeat in range(self.repeats)
            for tool in ((OURS, THEIRS) if repeat % 2 == 0 else (THEIRS, OURS))
        ]

    def folder(self, repeat: int, tool: str) -> Path:
        """Where one run leaves its results."""
        return self.out / "runs" / f"{tool}-{repeat + 1}"

    def run_flags(self, repeat: int) -> list[str]:
        """All flags of a run of ours; nothing ends it early, since a witness ends nothing early."""
        return self._flags(seed=self.seed + repeat, folder=self.folder(repeat, OURS))

    def warm_up_flags(self) -> list[str]:
        """Those of a run before all others, which is not counted; its requests are its own."""
        return self._flags(seed=self.seed + self.repeats, folder=self.out / "runs" / WARM_UP)

    def _flags(self, *, seed: int, folder: Path) -> list[str]:
        return [
            *self.flags, "--api", Api.CHAT.value, "--keep-going", "--no-report",
            "--seed", str(seed), "--out", str(folder),
        ]  # fmt: skip

    def settings(self, repeat: int) -> LoadSettings:
        """The settings of such a run.

        Raises:
            ConfigError: they do not fit together.
        """
        parser = argparse.ArgumentParser(prog="python -m loadtest.witness", allow_abbrev=False)
        parser.add_argument("--host", required=True)
        add_flags(parser)
        return settings_of(vars(parser.parse_args(self.run_flags(repeat))))


def add_witness_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a witness; all others are those of `python -m loadtest.load run`."""
    add = parser.add_argument
    add("--guidellm", default="", metavar="PROGRAM", help="guidellm's program; that on PATH")
    add("--repeats", type=int, default=5, help=f"runs of each tool, {MIN_RUNS} or more")
    add("--within", type=float, default=0.1, metavar="SHARE", help="bound of the ratio's distance")
    add("--seed", type=int, default=0, help="of the first repeat; each later one counts up")
    add("--out", type=Path, default=Path("load-witness"), help="folder that takes the results")


def plan_of(given: Any, flags: Sequence[str]) -> WitnessPlan:  # noqa: ANN401  argparse's namespace
    """The plan that flags describe.

    Raises:
        ConfigError: they do not fit together.
    """
    fixed = _FIXED & {flag.partition("=")[0] for flag in flags}
    if fixed:
        raise ConfigError(
            f"{', '.join(sorted(fixed))} cannot be chosen: both tools stream chat completions in "
            "an open loop that nothing ends early; leave it out"
        )
    return WitnessPlan(
        repeats=given.repeats,
        seed=given.seed,
        within=given.within,
        out=given.out,
        flags=tuple(flags),
    )


def _check_load(settings: LoadSettings) -> None:
    """A witness sends single requests and reads their answers to the end."""
    for name, kind in settings.classes.items():
        if kind.dialogue or kind.leave_after_s is not None or kind.pause_s:
            raise ConfigError(
                f"a witness cannot offer the class {name!r} of workload {settings.workload!r}: "
                "conversations, clients that leave and slow readers are ours alone; give another "
                "--workload"
            )
