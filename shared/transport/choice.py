"""Which transports a worker has in the end, and why not the others that its settings name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.errors import ConfigError
from shared.transport.nixl_library import BROKEN, NOT_INSTALLED

T = TypeVar("T")

_ABSENT = frozenset({NOT_INSTALLED, BROKEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedTransport:
    """A transport that was wanted and does not work here."""

    name: str
    """Transport."""
    code: str
    """Why, as one of few words; a metric label."""
    reason: str
    """Why, as a sentence."""

    @property
    def text(self) -> str:
        """Name and reason in one line."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTransports(Generic[T]):
    """What came of the settings."""

    opened: dict[str, T]
    """What works, best first."""
    rejected: tuple[RejectedTransport, ...]
    """What does not."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what works, best first."""
        return tuple(self.opened)


def open_transports(
    wanted: Sequence[str], *, required: str, open_one: Callable[[str], T]
) -> ChosenTransports[T]:
    """Opens every transport that works here.

    Args:
        wanted: their names, best first.
        required: use only this one; empty: all that are wanted.
        open_one: opens one by name.

    Raises:
        ConfigError: the required one, or every wanted one, does not work here, with the reason;
            or a name is unknown.
    """
    opened: dict[str, T] = {}
    rejected: list[RejectedTransport] = []
    for name in (required,) if required else wanted:
        try:
            opened[name] = open_one(name)
        except ConfigError as error:
            if error.error_code not in _ABSENT:
                raise
            rejected.append(
                RejectedTransport(name=name, code=error.error_code, reason=error.message)
            )
    if opened:
        return ChosenTransports(opened=opened, rejected=tuple(rejected))
    what = "the required transport" if required else "no transport of the settings"
    verb = "cannot be used here" if required else "can be used here"
    reasons = "; ".join(each.text for each in rejected)
    raise ConfigError(
        f"{what} {verb} ({reasons}): install what is missing, or name grpc among transports "
        "and require nothing",
        param="require_transport" if required else "transports",
    )
