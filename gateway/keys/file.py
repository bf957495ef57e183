"""The key file: JSON, one object a key, hashes only; written whole and put in place at once."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway.keys.record import KeyRecord
from gateway.principal import KeyLimits
from shared.errors import ConfigError

_VERSION = 1
_OWNER_ONLY = 0o600
_FIELDS = {
    "id",
    "sha256",
    "created",
    "expires",
    "admin",
    "requests_per_minute",
    "tokens_per_minute",
    "weight",
}


def read_keys(path: Path) -> dict[str, KeyRecord]:
    """The keys of a file by id.

    Raises:
        ConfigError: the file is missing, is no key file, or holds an impossible key.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read ({error.strerror}); make one with "
            "`tandem key new ID --file PATH`, or leave api_keys empty"
        ) from error
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(body, dict) or body.get("version") != _VERSION:
        raise _damaged(path, f"no object of version {_VERSION}")
    entries = body.get("keys")
    if not isinstance(entries, list):
        raise _damaged(path, "no list `keys`")
    records: dict[str, KeyRecord] = {}
    for entry in entries:
        record = _record(entry, path)
        if record.key_id in records:
            raise _damaged(path, f"the id {record.key_id} stands there twice")
        records[record.key_id] = record
    return records


def write_keys(path: Path, records: Mapping[str, KeyRecord]) -> None:
    """Replaces the file at once, so that a reader sees the old or the new one; owner-only.

    Raises:
        ConfigError: it cannot be written.
    """
    body = {"version": _VERSION, "keys": [_entry(record) for record in records.values()]}
    text = json.dumps(body, indent=2) + "\n"
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        mode = path.stat().st_mode & 0o777 if path.exists() else _OWNER_ONLY
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def editing(path: Path, *, make_folder: bool = False) -> Iterator[None]:
    """Between reading the file and replacing it, no other process that uses this does either.

    The lock is on the folder: replacing the file would leave a lock on it with the old one.

    Raises:
        ConfigError: the folder is missing or cannot be made or opened.
    """
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _record(entry: Any, path: Path) -> KeyRecord:  # noqa: ANN401  parsed JSON is anything
    if not isinstance(entry, dict):
        raise _damaged(path, "an entry of `keys` is no object")
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise _damaged(path, f"unknown field {min(unknown)}")
    try:
        expires = entry.get("expires")
        return KeyRecord(
            key_id=_typed(entry["id"], str),
            sha256=_typed(entry["sha256"], str),
            created=datetime.fromisoformat(_typed(entry["created"], str)),
            expires=None if expires is None else datetime.fromisoformat(_typed(expires, str)),
            admin=_typed(entry.get("admin", False), bool),
            limits=KeyLimits(
                requests_per_minute=_optional_int(entry.get("requests_per_minute")),
                tokens_per_minute=_optional_int(entry.get("tokens_per_minute")),
                weight=float(_typed(entry.get("weight", 1.0), int, float)),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"a key has a missing or wrong field ({error})") from error


def _entry(record: KeyRecord) -> dict[str, object]:
    limits = record.limits
    fields: dict[str, object] = {
        "id": record.key_id,
        "sha256": record.sha256,
        "created": record.created.isoformat(),
        "expires": None if record.expires is None else record.expires.isoformat(),
        "admin": record.admin,
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "weight": limits.weight,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _typed(value: Any, *kinds: type) -> Any:  # noqa: ANN401  parsed JSON is anything
    if type(value) not in kinds:
        raise TypeError(f"{type(value).__name__} is not {kinds[0].__name__}")
    return value


def _optional_int(value: object) -> int | None:
    return None if value is None else int(_typed(value, int))


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the key file {path} cannot be written ({error.strerror}); choose another --file, "
        "or correct the folder's permissions"
    )


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no file of API keys: {why}; it was edited by hand or is another file; write it "
        "with `tandem key new`, `tandem key revoke`"
    )
