"""One API key: its secret is shown once, its record holds only a hash.

A secret is `tandem_<id>_<43 characters>`: 256 random bits, so one SHA-256 is enough (a slow hash
guards weak passwords, and would cost every request its time). The id inside names the record, so a
check compares one hash and takes as long for an unknown id as for a wrong secret.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from gateway.principal import KeyLimits, Principal
from shared.errors import ConfigError

_PREFIX = "tandem"
_SECRET_BYTES = 32
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_SECRET = re.compile(r"tandem_([a-z0-9-]{1,40})_[A-Za-z0-9_-]{43}")
_MAX_SECRET_CHARS = 128
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key as the gateway knows it.

    Raises:
        ConfigError: the id, the hash, a limit or the expiry cannot be.
    """

    key_id: str
    """Public name: lower-case letters, digits and dashes, at most 40."""
    sha256: str
    """SHA-256 of the secret, in hex."""
    created: datetime
    """When it was made."""
    expires: datetime | None = None
    """End of its validity; None is never."""
    admin: bool = False
    """Opens what is for operators."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    """What it may use."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.key_id):
            raise ConfigError(
                f"{self.key_id[:60]!r} cannot be the id of an API key: use lower-case letters, "
                "digits and dashes, at most 40, no dash at either end"
            )
        if not _HASH.fullmatch(self.sha256):
            raise ConfigError(
                f"the API key {self.key_id} has no SHA-256 in hex: the file was damaged; make the "
                "key again with `tandem key new`"
            )
        if self.expires is not None and self.expires.tzinfo is None:
            raise ConfigError(
                f"the expiry of the API key {self.key_id} has no time zone; write it as "
                "2027-01-31T00:00:00+00:00"
            )
        self._check_limits()

    def principal(self) -> Principal:
        """The caller that this key stands for."""
        return Principal(key_id=self.key_id, limits=self.limits, admin=self.admin)

    def expired(self, now: datetime) -> bool:
        """Whether it is no longer valid at `now`."""
        return self.expires is not None and self.expires <= now

    def _check_limits(self) -> None:
        limits = self.limits
        counts = (limits.requests_per_minute, limits.tokens_per_minute)
        if any(count is not None and count < 1 for count in counts) or not 0 < limits.weight < inf:
            raise ConfigError(
                f"a limit of the API key {self.key_id} is not above 0 or has no end: "
                "requests_per_minute, tokens_per_minute and weight must be numbers above 0; revoke "
                "the key to shut it out"
            )


def new_secret(key_id: str) -> str:
    """A fresh secret for a key of this id."""
    return f"{_PREFIX}_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def hash_of(secret: str) -> str:
    """What a record keeps of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def id_in(secret: str) -> str | None:
    """The id that a secret names; None when it does not look like one of ours."""
    if len(secret) > _MAX_SECRET_CHARS:
        return None
    match = _SECRET.fullmatch(secret)
    return match.group(1) if match else None


def utc_now() -> datetime:
    """The wall clock, for expiries."""
    return datetime.now(UTC)
