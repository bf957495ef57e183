"""Comma-separated lists that flags take."""

from collections.abc import Callable
from typing import TypeVar

from shared.errors import ConfigError

T = TypeVar("T", bound=float)


def names_in(text: str) -> tuple[str, ...]:
    """Names of a list; none of an empty one."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def numbers_in(
    text: str, *, flag: str, kind: Callable[[str], T], like: str, above: float | None = None
) -> tuple[T, ...]:
    """Numbers of a list.

    Args:
        text: as it was typed.
        flag: its name, for the refusal.
        kind: `int` or `float`.
        like: an example, for the refusal.
        above: what each of them is greater than; None: they may be any.

    Raises:
        ConfigError: it is no such list.
    """
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or (above is not None and min(numbers) <= above):
        what = "whole numbers" if kind is int else "numbers"
        bound = "" if above is None else f" above {above:g}"
        raise ConfigError(
            f"{flag} cannot be {text!r}: write {what}{bound} with commas between them, like {like}"
        )
    return numbers
