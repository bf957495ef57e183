"""Profiles as TOML: read with every mistake named, and written so that equal content is equal text.

A file has `source`, `calibrated`, an optional `name`, the tables [model] (which model it is for),
[pruning] and [sparsity] (every value with its source) and [evidence], the measured curves behind
the values, for people and plots: nothing is computed from them.
"""

import itertools
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from shared.config.fields import closest
from shared.errors import ConfigError
from shared.model.profile_record import ModelFit, ModelProfile
from shared.types.methods import PruningParams, SparsityParams

_KEYS = ("name", "source", "calibrated", "model", "pruning", "sparsity", "evidence")
_LINE = 96

Record = TypeVar("Record", PruningParams, SparsityParams, ModelFit)


def read_profile(path: Path) -> ModelProfile:
    """The profile in a file.

    Raises:
        ConfigError: the file cannot be read, or something in it is unknown or out of range.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"profile {path} cannot be read ({error}): the path or the TOML is wrong; correct it"
        ) from error
    _known(raw, _KEYS, where=str(path))
    if not isinstance(raw.get("calibrated", False), bool) or not isinstance(
        raw.get("evidence", {}), dict
    ):
        raise ConfigError(
            f"{path}: `calibrated` must be true or false and `evidence` a table; correct them"
        )
    sources: dict[str, str] = {}
    tables = {
        name: _values(raw.get(name, {}), where=(path, name), sources=sources)
        for name in ("pruning", "sparsity")
    }
    return ModelProfile(
        name=str(raw.get("name", path.stem)),
        pruning=_record(PruningParams, tables["pruning"], where=f"{path} [pruning]"),
        sparsity=_record(SparsityParams, tables["sparsity"], where=f"{path} [sparsity]"),
        source=str(raw.get("source", "")),
        calibrated=raw.get("calibrated", False),
        fit=_record(ModelFit, raw.get("model", {}), where=f"{path} [model]"),
        sources=sources,
    )


def read_evidence(path: Path) -> dict[str, Any]:
    """The measured curves in a profile's file; empty where it has none.

    Raises:
        ConfigError: the file cannot be read, is no profile, or holds what cannot be written again.
    """
    read_profile(path)
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")).get("evidence", {})
    if not all(_is_writable(value) for value in found.values()):
        raise ConfigError(
            f"{path} [evidence] holds dates or tables within lists: a calibration writes neither; "
            "remove them"
        )
    return found


def read_comment(path: Path) -> str:
    """The comment lines that a profile's file begins with, each with its line end; maybe none.

    Raises:
        ConfigError: the file cannot be read, or is no profile.
    """
    read_profile(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))


def profile_text(profile: ModelProfile, *, evidence: Mapping[str, Any], comment: str = "") -> str:
    """The TOML of a profile.

    Args:
        profile: every value that has a source, or is not the code's default, is written; None is
            a default everywhere, and TOML cannot say it.
        evidence: strings, numbers, booleans and lists of them, or tables of these.
        comment: whole comment lines to begin with, as `read_comment` gives them.
    """
    head = {"name": profile.name, "source": profile.source, "calibrated": profile.calibrated}
    lines = [_assignment(key, value) for key, value in head.items()]
    lines += ["", "[model]"]
    fit = {f.name: getattr(profile.fit, f.name) for f in fields(profile.fit)}
    lines += [_assignment(key, value) for key, value in fit.items() if value not in (None, "")]
    for section, params in (("pruning", profile.pruning), ("sparsity", profile.sparsity)):
        lines += ["", f"[{section}]"]
        for f in fields(params):
            value = getattr(params, f.name)
            source = profile.sources.get(f"{section}.{f.name}", "")
            if value is not None and (source or value != f.default):
                entry = f"{{ value = {_literal(value)}, source = {_literal(source)} }}"
                lines.append(f"{f.name} = {entry}")
    return comment + "\n".join([*lines, *_table("evidence", evidence)]) + "\n"


def _is_writable(value: Any) -> bool:  # noqa: ANN401 - TOML values are of any type
    """Whether `profile_text` can write a value of the evidence."""
    if isinstance(value, Mapping):
        return all(_is_writable(entry) for entry in value.values())
    items = value if isinstance(value, list) else [value]
    return all(
        isinstance(item, str | bool | int | float)
        or (isinstance(item, list) and _is_writable(item))
        for item in items
    )


def _table(name: str, entries: Mapping[str, Any]) -> list[str]:
    """A table's lines: plain entries first, then the tables within it."""
    plain = {key: value for key, value in entries.items() if not isinstance(value, Mapping)}
    lines = ["", f"[{name}]", *(_assignment(key, value) for key, value in plain.items())]
    for key, value in entries.items():
        if isinstance(value, Mapping):
            lines += _table(f"{name}.{key}", value)
    return lines


def _assignment(key: str, value: Any) -> str:  # noqa: ANN401 - TOML values are of any type
    """`key = value`; a list that is too long for a line is folded."""
    line = f"{key} = {_literal(value)}"
    if not isinstance(value, list | tuple) or len(line) <= _LINE:
        return line
    rows, row = [], "   "
    for item in value:
        text = f" {_literal(item)},"
        if len(row) + len(text) > _LINE:
            rows.append(row)
            row = "   "
        row += text
    return "\n".join([f"{key} = [", *rows, row, "]"])


def _literal(value: Any) -> str:  # noqa: ANN401 - TOML values are of any type
    if isinstance(value, Enum):
        return _literal(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    assert isinstance(value, int | float), f"TOML has no form for {value!r}"
    return repr(value)


def _values(
    table: Mapping[str, Any], *, where: tuple[Path, str], sources: dict[str, str]
) -> dict[str, Any]:
    """Value by key of a table of `{ value, source }`; the sources are added to `sources`."""
    path, section = where
    values = {}
    for key, entry in table.items():
        if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
            raise ConfigError(
                f'{path} [{section}] {key}: every entry is {{ value = ..., source = "..." }}, so '
                "that each value says where it comes from; write it so"
            )
        values[key] = entry["value"]
        sources[f"{section}.{key}"] = str(entry["source"])
    return values


def _record(cls: type[Record], table: Mapping[str, Any], *, where: str) -> Record:
    """The record with a table's values, each checked against the type of its field."""
    hints = typing.get_type_hints(cls)
    _known(table, tuple(f.name for f in fields(cls)), where=where)
    values = {
        key: _checked(value, hints[key], where=f"{where} {key}") for key, value in table.items()
    }
    try:
        return cls(**values)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}; complete or correct the profile") from error


def _checked(value: Any, hint: Any, *, where: str) -> Any:  # noqa: ANN401 - any type, checked here
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if isinstance(hint, type) and issubclass(hint, Enum):
        known = [member.value for member in hint]
        if value not in known:
            raise ConfigError(
                f"{where} is {value!r}: it must be one of {', '.join(known)}; correct it"
            )
        return hint(value)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {value!r}: it must be of type list; correct it")
        item = typing.get_args(hint)[0]
        return tuple(_checked(entry, item, where=where) for entry in value)
    wanted = (float, int) if hint is float else (hint,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ConfigError(f"{where} is {value!r}: it must be of type {names}; correct it")
    return value


def _known(table: Mapping[str, Any], names: tuple[str, ...], *, where: str) -> None:
    for key in table:
        if key not in names:
            near = closest(key, names)
            hint = "" if near is None else f"; did you mean {near!r}?"
            raise ConfigError(
                f"{where} has an unknown key {key!r}{hint}; known: {', '.join(names)}"
            )
