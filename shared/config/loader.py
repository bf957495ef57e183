"""Fills a settings dataclass: flags over environment over file over defaults, with origins."""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from shared.config.fields import FieldInfo, closest, convert, describe
from shared.config.secrets import mask_secret
from shared.errors import ConfigError

C = TypeVar("C")

DEFAULT_FILE = Path("tandem.toml")
SECTIONS = frozenset({"prefill", "decode", "gateway", "up"})
RESERVED_VARIABLES = frozenset({"TANDEM_API_KEY", "TANDEM_CACHE_DIR", "TANDEM_CONFIG"})


@dataclass(frozen=True, slots=True)
class LoadedConfig(Generic[C]):
    """A settings value and where each field came from."""

    value: C
    """The frozen settings."""
    origins: dict[str, str]
    """Field to `flag --x`, `environment X`, `file F` or `default`."""

    def changed(self) -> dict[str, str]:
        """`value (origin)` of every field that is not at its default; passwords are masked."""
        return {
            name: f"{mask_secret(str(getattr(self.value, name)))} ({origin})"
            for name, origin in self.origins.items()
            if origin != "default"
        }


def load_config(
    cls: type[C],
    *,
    section: str,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> LoadedConfig[C]:
    """Loads one role's settings.

    Args:
        cls: frozen dataclass with a default and a docstring for each field.
        section: table of the file and middle part of the variables TANDEM_<SECTION>__<FIELD>.
        flags: field name to text, as parsed from the command line.
        environ: environment; the process's own when None.
        file: TOML file; TANDEM_CONFIG or ./tandem.toml (when it exists) when None.

    Raises:
        ConfigError: unknown key (the nearest known one is named), unreadable file, misfit value.
    """
    environ = os.environ if environ is None else environ
    infos = describe(cls)
    values: dict[str, Any] = {name: info.default for name, info in infos.items()}
    origins = dict.fromkeys(infos, "default")
    path = _config_file(file, environ)
    if path is not None:
        _take(values, origins, _file_section(path, section), infos, f"file {path}")
    for variable, (name, text) in _from_environment(environ, section, infos).items():
        values[name] = convert(text, to=infos[name].type, name=variable)
        origins[name] = f"environment {variable}"
    for name, text in (flags or {}).items():
        flag = "--" + name.replace("_", "-")
        _require_known(name, infos, "flag")
        values[name] = convert(text, to=infos[name].type, name=flag)
        origins[name] = f"flag {flag}"
    return LoadedConfig(cls(**values), origins)


def _config_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if environ.get("TANDEM_CONFIG"):
        return Path(environ["TANDEM_CONFIG"]).expanduser()
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _file_section(path: Path, section: str) -> dict[str, object]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"settings file {path} cannot be read: {error.strerror}; "
            "check the path given by --config or TANDEM_CONFIG"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"settings file {path} is not valid TOML: {error}; correct that line"
        ) from error
    for name in tables:
        if name not in SECTIONS:
            raise ConfigError(
                f"settings file {path}: unknown table [{name}]{_near(name, SECTIONS)}"
            )
    table = tables.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"settings file {path}: [{section}] must be a table")
    return table


def _take(
    values: dict[str, Any],
    origins: dict[str, str],
    table: Mapping[str, object],
    infos: Mapping[str, FieldInfo],
    origin: str,
) -> None:
    for name, value in table.items():
        _require_known(name, infos, f"key in {origin}")
        values[name] = convert(value, to=infos[name].type, name=f"{name} ({origin})")
        origins[name] = origin


def _from_environment(
    environ: Mapping[str, str], section: str, infos: Mapping[str, FieldInfo]
) -> dict[str, tuple[str, str]]:
    found = {}
    prefix = f"TANDEM_{section.upper()}__"
    for variable, text in environ.items():
        if not variable.startswith("TANDEM_") or variable in RESERVED_VARIABLES:
            continue
        part = variable.removeprefix("TANDEM_").partition("__")[0].lower()
        if part not in SECTIONS:
            known = sorted(RESERVED_VARIABLES) + [
                f"TANDEM_{s.upper()}__<FIELD>" for s in sorted(SECTIONS)
            ]
            cutoff = 0.6 if "__" in variable else 0.8  # without it only a reserved name is near
            raise ConfigError(
                f"unknown environment variable {variable}{_near(variable, known, cutoff=cutoff)}"
            )
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            _require_known(name, infos, f"environment variable {variable}: setting")
            found[variable] = (name, text)
    return found


def _require_known(name: str, infos: Mapping[str, FieldInfo], what: str) -> None:
    if name not in infos:
        raise ConfigError(f"unknown {what} {name!r}{_near(name, infos)}")


def _near(name: str, known: Collection[str], *, cutoff: float = 0.6) -> str:
    near = closest(name, known, cutoff=cutoff)
    return f"; did you mean {near}?" if near else f"; known: {', '.join(sorted(known))}"
