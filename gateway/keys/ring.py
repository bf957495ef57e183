"""Checks callers against the key file, which may change at any time."""

import hmac
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog

from gateway.keys.file import read_keys
from gateway.keys.record import KeyRecord, hash_of, id_in, utc_now
from gateway.principal import Principal
from shared.errors import AuthenticationError, ConfigError
from shared.telemetry.file_watch import FileWatch

_SCHEME = "bearer"
_NOBODY = hash_of("")

_log = structlog.get_logger(__name__)


class KeyRing:
    """The keys of one file; a changed file counts from the next request on.

    A file that became unreadable changes nothing: the last readable keys stay, and the log says so.

    Args:
        path: the key file.
        clock: wall clock, for expiries.

    Raises:
        ConfigError: the file cannot be used at the start.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._path = path
        self._clock = clock
        self._watch = FileWatch(path)
        self._records: dict[str, KeyRecord] = read_keys(path)
        _log.info("api keys loaded", keys=len(self._records), file=str(path))

    def authenticate(self, authorization: str | None) -> Principal:
        """The caller behind an `Authorization: Bearer` value.

        Raises:
            AuthenticationError: no key, an unknown or revoked one, or one that has expired.
        """
        if not authorization:
            raise AuthenticationError(
                "no API key was sent; put it into the header `Authorization: Bearer KEY`, which "
                "OpenAI clients do with their api_key"
            )
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        key_id = id_in(secret) if scheme.lower() == _SCHEME else None
        self._reload()
        record = self._records.get(key_id) if key_id is not None else None
        expected = _NOBODY if record is None else record.sha256
        same = hmac.compare_digest(hash_of(secret), expected)
        if record is None or not same:
            raise AuthenticationError(
                "the API key is not valid: it is mistyped, was revoked, or belongs to another "
                "server; ask its operator for a new one"
            )
        if record.expired(self._clock()):
            raise AuthenticationError(
                f"the API key {record.key_id} has expired; ask the server's operator for a new one"
            )
        return record.principal()

    def _reload(self) -> None:
        if not self._watch.changed():
            return
        try:
            self._records = read_keys(self._path)
        except ConfigError as error:
            _log.error("api keys not reloaded; the last ones stay in force", why=error.message)
        else:
            _log.info("api keys reloaded", keys=len(self._records))
