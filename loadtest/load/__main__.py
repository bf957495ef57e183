"""`python -m loadtest.load run|compare`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.load.compare import compared
from loadtest.load.flags import add_flags, settings_of
from loadtest.load.results import read_summary
from loadtest.page import number
from shared.config.exit_codes import exit_code_for
from shared.errors import ConfigError, TandemError

_LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 served in time, 1 missed, 3 wrong settings, 7 client saturated, 8 broken off."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    try:
        if given.command == "run":
            return _run(given, arguments[1:])
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
    compare = commands.add_parser(
        "compare", help="arms of one or more runs, with confidence intervals"
    )
    compare.add_argument(
        "arms", nargs="+", metavar="NAME=RUN,RUN", help="results folders; the base first"
    )
    compare.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _run(given: argparse.Namespace, flags: Sequence[str]) -> int:
    """Locust in a process of its own: it patches the one it runs in."""
    settings_of(vars(given))
    command = ["-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--only-summary", *flags]
    return subprocess.run([sys.executable, *command], check=False).returncode  # noqa: S603  ours


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
    return "\n".join(lines)


def _ratio_text(ratio: dict[str, float | None]) -> str:
    text = number(ratio["ratio"])
    if ratio["low"] is None:
        return f"{text} (fewer than 3 runs: no interval)" if ratio["ratio"] is not None else text
    return f"{text} [{number(ratio['low'])}, {number(ratio['high'])}]"


if __name__ == "__main__":
    sys.exit(main())
