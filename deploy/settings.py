"""`tandem config show`: the effective settings of every role and where each comes from."""

import importlib
import json
from enum import Enum
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from shared.config.flags import parse_flags
from shared.config.loader import LoadedConfig, load_config
from shared.config.secrets import mask_secret
from shared.errors import ConfigError

CONFIG_CLASSES = {
    "gateway": "gateway.config:GatewayConfig",
    "prefill": "prefill_service.config:PrefillConfig",
    "decode": "decode_service.config:DecodeConfig",
    "up": "deploy.config:UpConfig",
}

ROLE_NAMES = ("gateway", "prefill", "decode")


def show_settings(*, role: str, origin: bool, file: Path | None, as_json: bool) -> None:
    """Prints the settings of one role or of all.

    Raises:
        ConfigError: no such role, or a setting is wrong.
    """
    if role != "all" and role not in CONFIG_CLASSES:
        raise ConfigError(
            f"unknown role {role!r}: choose one of {', '.join(CONFIG_CLASSES)} or all"
        )
    names = list(CONFIG_CLASSES) if role == "all" else [role]
    shown = {name: effective_settings(name, file=file) for name in names}
    if as_json:
        print(json.dumps(shown))
        return
    columns = ("setting", "value", "origin") if origin else ("setting", "value")
    for name, settings in shown.items():
        table = Table(*columns, title=name, title_justify="left")
        for field, entry in settings.items():
            cells = (field, str(entry["value"]), str(entry["origin"]))
            table.add_row(*cells[: len(columns)])
        Console(soft_wrap=True).print(table)


def effective_settings(role: str, *, file: Path | None) -> dict[str, dict[str, object]]:
    """Field -> value (as JSON types, secrets masked) and origin."""
    loaded = load_role(role, file=file)
    return {
        name: {"value": _plain(getattr(loaded.value, name)), "origin": origin}
        for name, origin in loaded.origins.items()
    }


def load_role(role: str, *, file: Path | None) -> LoadedConfig[Any]:
    """The settings of a role as its process would load them without flags."""
    return load_config(config_class(role), section=role, file=file)


def check_settings(role: str, argv: list[str]) -> None:
    """Reads a role's flags and settings as its process will, without the seconds torch takes.

    `--help` and unknown flags end the process here.

    Raises:
        ConfigError: a setting is wrong.
    """
    cls = config_class(role)
    flags = parse_flags(cls, prog=f"tandem {role}", section=role, argv=argv)
    load_config(cls, section=role, flags=flags.values, file=flags.file)


def check_plain(file: Path | None) -> None:
    """`tandem up` runs the roles on loopback, where its own questions to them are plain text.

    Args:
        file: the settings file that the roles will be given.

    Raises:
        ConfigError: the settings of a role ask for TLS, or are wrong.
    """
    for role in ROLE_NAMES:
        settings = load_role(role, file=file).value
        named = ("tls_cert", "worker_tls_cert")
        if any(getattr(settings, name, None) is not None for name in named):
            raise ConfigError(
                f"the {role} settings name a TLS certificate, and `tandem up` runs every role on "
                f"loopback in plain text; start `tandem {role}` and the other roles one by one, or "
                "unset it"
            )


def config_class(role: str) -> type:
    """The settings dataclass of a role, imported now."""
    module, _, name = CONFIG_CLASSES[role].partition(":")
    cls = getattr(importlib.import_module(module), name)
    return cast("type", cls)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return mask_secret(value) if isinstance(value, str) else value
