"""Who sends a request: the identity that authentication hands to admission."""

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What one API key may use; None leaves a limit to the gateway's settings."""

    requests_per_minute: int | None = None
    """Requests in any minute."""
    tokens_per_minute: int | None = None
    """Prompt and answer tokens in any minute."""
    weight: float = 1.0
    """Share of this key when keys compete for the queue; 2 gets twice what 1 gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller. `key_id` is public (a label, never the secret) and may be logged."""

    key_id: str
    """Names the API key: the counter of quotas and the queue of fair queueing."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    """What the key may use."""
    admin: bool = False
    """Whether the key opens what is for operators: metrics, `/admin`, `/debug`, health details."""


ANONYMOUS = Principal(key_id="anonymous", admin=True)
"""Everybody, when the gateway asks for no keys: may do whatever the public port offers."""

STRANGER = Principal(key_id="stranger")
"""A caller without a key at a path that needs none, while other paths do."""

_current: ContextVar[Principal] = ContextVar("principal", default=ANONYMOUS)


def current_principal() -> Principal:
    """The caller of the request that this task serves; ANONYMOUS where no keys are asked for."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Notes the caller for this task and the tasks that it starts."""
    _current.set(principal)
