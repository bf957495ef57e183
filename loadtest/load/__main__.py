"""`python -m loadtest.load run|watch|arms|compare`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.load.arms import add_arms_flags, run_arms
from loadtest.load.bootstrap import MIN_RUNS
from loadtest.load.compare import compared, ratio_text
from loadtest.load.flags import add_flags, settings_of
from loadtest.load.launch import become_locust, run_locust
from loadtest.load.results import read_summary
from shared.config.exit_codes import exit_code_for
from shared.errors import ConfigError, TandemError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 served in time, 1 missed, 3 wrong settings.

    7 client saturated, 8 broken off, 9 server saturated. Arms end with that of the worst run.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    try:
        if given.command == "arms":
            return run_arms(arguments[1:])
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        if given.command in {"run", "watch"}:
            settings_of(vars(given))
            start = run_locust if given.command == "run" else become_locust
            return start(arguments[1:])
        return _compare(given.arms, as_json=given.json)
    except TandemError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(exit_code_for(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.load", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one run of Locust, without its page", allow_abbrev=False)
    run.add_argument("--host", required=True, metavar="URL", help="REST server of the gateway")
    add_flags(run)
    watch = commands.add_parser(
        "watch", help="one run with Locust's page, until it is interrupted", allow_abbrev=False
    )
    watch.add_argument("--host", required=True, metavar="URL", help="REST server of the gateway")
    watch.add_argument("--web-host", default="", help="address of the page; all of them")
    watch.add_argument("--web-port", type=int, default=8089, help="port of the page")
    add_flags(watch)
    arms = commands.add_parser(
        "arms",
        help="the same load for every method in turn, with intervals over paired repeats",
        description="All further flags, --host among them, are those of run.",
        allow_abbrev=False,
    )
    add_arms_flags(arms)
    compare = commands.add_parser(
        "compare", help="arms of one or more runs, with confidence intervals"
    )
    compare.add_argument(
        "arms", nargs="+", metavar="NAME=RUN,RUN", help="results folders; the base first"
    )
    compare.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _compare(texts: Sequence[str], *, as_json: bool) -> int:
    found = compared(_arms(texts))
    print(json.dumps(found) if as_json else _table(found))
    return 0


def _arms(texts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    arms = dict(map(_arm, texts))
    if len(arms) < len(texts):
        raise ConfigError("two arms have one name: give each its own")
    return arms


def _arm(text: str) -> tuple[str, list[dict[str, Any]]]:
    name, equals, paths = text.partition("=")
    if not (name and equals and paths):
        raise ConfigError(f"arm {text!r} cannot be read: it is NAME=RUN,RUN with results folders")
    return name, [read_summary(Path(path)) for path in paths.split(",")]


def _table(found: dict[str, Any]) -> str:
    lines = [
        f"{'':28}" + "".join(f"{name:>12}" for name in found["runs"]) + f"   to {found['base']}"
    ]
    for metric, row in found["metrics"].items():
        means = "".join(f"{value:12.4g}" for value in row["means"].values())
        ratios = "   ".join(_ratio_text(ratio) for ratio in row["ratios"].values())
        lines.append(f"{metric:28}{means}   {ratios}")
    lines += [f"verdicts of {name}: {', '.join(each)}" for name, each in found["verdicts"].items()]
    return "\n".join(lines)


def _ratio_text(ratio: dict[str, float | None]) -> str:
    text = ratio_text(ratio)
    if ratio["low"] is None and ratio["ratio"] is not None:
        return f"{text} (fewer than {MIN_RUNS} runs: no interval)"
    return text


if __name__ == "__main__":
    sys.exit(main())
