"""A table of named factories whose unknown-name error lists the known names."""

import difflib
from typing import Generic, TypeVar

from shared.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one family by name.

    Args:
        kind: what the members are, for error texts, for example "ranker".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._members: dict[str, T] = {}
        self._offered: list[str] = []

    def register(self, name: str, member: T, *, internal: bool = False) -> None:
        """Adds a member; a second one of the same name is a defect of ours.

        Args:
            name: of the member.
            member: what `get` returns.
            internal: nobody can choose it by a setting, so that error texts leave it out.
        """
        assert name not in self._members, f"{self._kind} {name!r} is registered twice"
        self._members[name] = member
        if not internal:
            self._offered.append(name)

    def get(self, name: str) -> T:
        """Returns the member.

        Raises:
            ConfigError: no member has this name; the text lists those to choose from.
        """
        try:
            return self._members[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._offered, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(sorted(self._offered))
            raise ConfigError(f"unknown {self._kind} {name!r}{hint}; known: {known}") from None

    def names(self) -> tuple[str, ...]:
        """Names in order of registration."""
        return tuple(self._members)
