"""`tandem key`: makes, lists and revokes API keys; running gateways notice a changed file."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

key_app = typer.Typer(no_args_is_help=True, help="API keys of the gateway.")

File = Annotated[
    Path | None,
    typer.Option("--file", help="Key file; the gateway's setting api_keys when not given."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@key_app.command("new")
def new(
    key_id: Annotated[str, typer.Argument(help="Public name: a-z, 0-9 and dashes.")],
    file: File = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Its own limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Its own limit.")] = None,
    weight: Annotated[float, typer.Option(min=0.01, help="Share when keys compete.")] = 1.0,
    admin: Annotated[bool, typer.Option("--admin", help="Opens /metrics, /admin, /debug.")] = False,
    as_json: Json = False,
) -> None:
    """Makes a key and prints it: the only time that it is shown; the file keeps a hash.

    JSON keys: id, key, expires.
    """
    from gateway.keys.file import editing, read_keys, write_keys
    from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
    from gateway.principal import KeyLimits
    from shared.errors import ConfigError

    path = _path(file)
    now = utc_now().replace(microsecond=0)
    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        weight=weight,
    )
    secret = new_secret(key_id)
    record = KeyRecord(
        key_id=key_id,
        sha256=hash_of(secret),
        created=now,
        expires=None if days is None else now + timedelta(days=days),
        admin=admin,
        limits=limits,
    )
    with editing(path, make_folder=True):
        records = read_keys(path) if path.exists() else {}
        if key_id in records:
            raise ConfigError(
                f"the key {key_id} exists in {path}; revoke it first, or choose another id"
            )
        write_keys(path, {**records, key_id: record})
    if as_json:
        print(json.dumps({"id": key_id, "key": secret, "expires": _text(record.expires)}))
        return
    print(secret)


@key_app.command("list")
def listing(file: File = None, as_json: Json = False) -> None:
    """Lists the keys of a file: ids, limits and expiry, never secrets.

    JSON keys: keys [{id, created, expires, expired, admin, requests_per_minute,
    tokens_per_minute, weight}].
    """
    from gateway.keys.file import read_keys
    from gateway.keys.record import utc_now

    now = utc_now()
    rows = [
        {
            "id": record.key_id,
            "created": _text(record.created),
            "expires": _text(record.expires),
            "expired": record.expired(now),
            "admin": record.admin,
            "requests_per_minute": record.limits.requests_per_minute,
            "tokens_per_minute": record.limits.tokens_per_minute,
            "weight": record.limits.weight,
        }
        for record in read_keys(_path(file)).values()
    ]
    if as_json:
        print(json.dumps({"keys": rows}))
        return
    for row in rows:
        shown = (f"{name}={value}" for name, value in row.items() if value and name != "id")
        print(f"{row['id']}  {' '.join(shown)}")


@key_app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its public name.")], file: File = None
) -> None:
    """Takes a key out of the file; running gateways refuse it from the next request on."""
    from gateway.keys.file import editing, read_keys, write_keys
    from shared.errors import ConfigError

    path = _path(file)
    with editing(path):
        records = read_keys(path)
        if key_id not in records:
            raise ConfigError(
                f"there is no key {key_id} in {path}: it was revoked before, or is in another "
                "file; see `tandem key list`"
            )
        del records[key_id]
        write_keys(path, records)
    print(f"revoked {key_id}")


def _path(file: Path | None) -> Path:
    """The file that was named, else the gateway's."""
    from deploy.settings import load_role
    from shared.errors import ConfigError

    if file is not None:
        return file
    configured: Path | None = load_role("gateway", file=None).value.api_keys
    if configured is None:
        raise ConfigError(
            "no key file: give --file, or set the gateway's api_keys (TANDEM_GATEWAY__API_KEYS)"
        )
    return configured


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
