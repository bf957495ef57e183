"""What the studies' commands share where the command line's packages are missing."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Request = TypeVar("Request")


def study_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with the flags that every study has; a flag that is not given is None."""
    parser = argparse.ArgumentParser(prog=prog, description=description, argument_default=None)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="results folder")
    add("--resume", action="store_true", help="go on with the results that are in it")
    add("--model", help="catalog name, folder or hub id")
    add("--device", help="PyTorch device")
    add("--dtype", help="float32 or bfloat16")
    add("--profile", help="profile name or TOML file")
    add("--cache-dir", type=Path, help="model cache")
    add("--commit", help="commit of the code, where it is no git checkout")
    add("--max-seconds", type=float, help="begin nothing new after this time")
    return parser


def request_of(
    arguments: Mapping[str, Any],
    *,
    request: Callable[..., Request],
    settings: type[Any],
    command: str,
) -> Request:
    """The request that flags describe; what was not given takes the fields' defaults.

    Args:
        arguments: by name of a field of the request or of the settings.
        request: its class, a `MeasuredModel` with a field `settings`.
        settings: the class of the settings.
        command: command line, for the record.

    Raises:
        ConfigError: a setting does not fit.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    names = {field.name for field in dataclasses.fields(settings)}
    sizes = settings(**{name: value for name, value in given.items() if name in names})
    own = {name: value for name, value in given.items() if name not in names}
    return request(settings=sizes, command=command, **own)


def list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Reads a comma-separated list."""

    def parse(text: str) -> tuple[Any, ...]:
        return tuple(kind(part.strip()) for part in text.split(","))

    parse.__name__ = f"list of {getattr(kind, '__name__', 'values')}"
    return parse


def print_progress(part: str, *, done: int, total: int) -> None:
    """Says on standard error how far a part is."""
    print(f"{part}: {done} of {total}", file=sys.stderr, flush=True)


def print_unfinished(out: Path) -> None:
    """Says on standard error that the time was up, and how to go on."""
    print(f"the time is up: --resume --out {out} goes on", file=sys.stderr)
