"""Command-line flags made from a settings dataclass, so that flags and settings cannot drift."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from shared.config.fields import closest, describe


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """What the command line said."""

    values: dict[str, str]
    """Field name to text; only flags that were given."""
    file: Path | None
    """Settings file of --config."""


def build_parser(cls: type, *, prog: str, section: str) -> argparse.ArgumentParser:
    """Makes a parser with one flag a field; each help line shows meaning, variable and default."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(cls.__doc__ or "").strip(),
        epilog="Exit codes: 0 ok, 2 usage, 3 config, 4 no device, 5 port busy, 6 model load. "
        "Flags win over environment, environment over file, file over defaults.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings file in TOML [TANDEM_CONFIG; ./tandem.toml when it exists]",
    )
    for info in describe(cls).values():
        variable = f"TANDEM_{section.upper()}__{info.name.upper()}"
        default = getattr(info.default, "value", info.default)
        text = f"{info.doc} [{variable}; default: {default!r}]".replace("%", "%%")
        parser.add_argument("--" + info.name.replace("_", "-"), metavar="VALUE", help=text)
    return parser


def parse_flags(cls: type, *, prog: str, section: str, argv: list[str]) -> ParsedFlags:
    """Parses `argv`; a mistake ends the process with status 2, a usage line and a near name."""
    parser = build_parser(cls, prog=prog, section=section)
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].partition("=")[0].removeprefix("--").replace("-", "_")
        near = closest(name, ["config", *describe(cls)])
        hint = "" if near is None else f"; did you mean --{near.replace('_', '-')}?"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    given = vars(parsed)
    file = given.pop("config", None)
    return ParsedFlags(given, Path(file).expanduser() if file is not None else None)
