"""Reads and writes measured profiles. Unknown, missing and mistyped fields are named."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from loadtest.plan.profile import MeasuredProfile
from shared.errors import ConfigError

T = TypeVar("T")


def read_profile(path: Path) -> MeasuredProfile:
    """The profile of a file.

    Raises:
        ConfigError: it cannot be read or is no such profile.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"measured profile {path} cannot be read ({error}); give the file of "
            "`tandem plan measure`"
        ) from error
    return profile_of(found)


def write_profile(profile: MeasuredProfile, path: Path) -> None:
    """Writes it as JSON, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")


def profile_of(found: object) -> MeasuredProfile:
    """The profile of a JSON value.

    Raises:
        ConfigError: it is none.
    """
    return _object(MeasuredProfile, found, place="")


def _object(kind: type[T], found: object, *, place: str) -> T:
    assert is_dataclass(kind), "only profiles' own types are read"
    if not isinstance(found, dict):
        raise _wrong(place or "the file", "must be an object")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    unknown = sorted(found.keys() - known.keys())
    if unknown:
        raise _wrong(_at(place, unknown[0]), f"is unknown; {', '.join(known)} are known")
    values = {}
    for name, each in known.items():
        if name in found:
            values[name] = _value(hints[name], found[name], place=_at(place, name))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _wrong(_at(place, name), "is missing")
    return kind(**values)


def _value(hint: Any, found: object, *, place: str) -> Any:  # noqa: ANN401  whatever the type says
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _object(hint, found, place=place)
    origin = get_origin(hint)
    if origin is tuple:
        if not isinstance(found, list):
            raise _wrong(place, "must be a list")
        item = get_args(hint)[0]
        return tuple(_value(item, each, place=f"{place}[{i}]") for i, each in enumerate(found))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(found, dict):
            raise _wrong(place, "must be an object")
        return found
    return _scalar(hint, found, place=place)


def _scalar(hint: type, found: object, *, place: str) -> object:
    if hint is str:
        if not isinstance(found, str) or not found:
            raise _wrong(place, "must be a text that is not empty")
        return found
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise _wrong(place, f"is {found!r}, but must be a number")
    if hint is int:
        if found != int(found):
            raise _wrong(place, f"is {found!r}, but must be a whole number")
        return int(found)
    return float(found)


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wrong(place: str, why: str) -> ConfigError:
    return ConfigError(f"measured profile: {place} {why}; mend it or run `tandem plan measure`")
