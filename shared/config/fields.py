"""What a settings dataclass says about its fields, and how text becomes a value of one."""

# ruff: noqa: ANN401 - a field's declared type is known only at run time

import ast
import dataclasses
import difflib
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInfo:
    """One setting."""

    name: str
    """Field name; flags replace underscores by dashes."""
    type: Any
    """Declared type, resolved."""
    default: Any
    """Default value."""
    doc: str
    """Docstring under the field, one line."""


def field_docs(cls: type) -> dict[str, str]:
    """Reads the docstrings under the fields of a dataclass from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = typing.cast("ast.ClassDef", tree.body[0]).body
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


def describe(cls: type) -> dict[str, FieldInfo]:
    """Fields of a settings dataclass in order; each must have a default and a docstring."""
    hints = typing.get_type_hints(cls)
    docs = field_docs(cls)
    infos = {}
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        assert default is not dataclasses.MISSING, f"{cls.__name__}.{field.name} has no default"
        assert field.name in docs, f"{cls.__name__}.{field.name} has no docstring"
        infos[field.name] = FieldInfo(field.name, hints[field.name], default, docs[field.name])
    return infos


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that a mistyped one most likely means; None when none is near."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return match[0] if match else None


def convert(value: object, *, to: Any, name: str) -> Any:
    """Turns text (flags, environment) or a TOML value into a field's type.

    Raises:
        ConfigError: the value does not fit; the text names the setting and what was expected.
    """
    try:
        return _convert(value, to)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"setting {name} cannot be {value!r}: expected {_type_text(to)}; "
            "correct the value or leave it out"
        ) from None


def _convert(value: object, to: Any) -> Any:
    origin = typing.get_origin(to)
    if origin in (types.UnionType, typing.Union):
        if value is None or value in {"", "none"}:
            return None
        inner = [arm for arm in typing.get_args(to) if arm is not types.NoneType]
        return _convert(value, inner[0])
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(to)[0])
    return _convert_scalar(value, to)


def _convert_tuple(value: object, item: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(_convert(part.strip(), item) for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple):
        return tuple(_convert(part, item) for part in value)
    raise TypeError


def _convert_scalar(value: object, to: Any) -> Any:
    if to is bool:
        return _convert_bool(value)
    if to is int:
        return _convert_int(value)
    if to is float and isinstance(value, str | int | float) and not isinstance(value, bool):
        return float(value)
    if to is str and isinstance(value, str):
        return value
    if to is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    if isinstance(to, type) and issubclass(to, Enum):
        return to(value)
    raise TypeError


def _convert_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError


def _convert_int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return int(value.replace("_", ""))
    raise TypeError


def _type_text(to: Any) -> str:
    if isinstance(to, type) and issubclass(to, Enum):
        return "one of " + ", ".join(str(member.value) for member in to)
    if typing.get_origin(to) is tuple:
        item = typing.get_args(to)[0]
        return "numbers as 0 or 0,1" if item is int else "a comma-separated list"
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Path: "a path",
        str: "text",
    }.get(to, str(to))
