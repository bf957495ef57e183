"""A conversation as the load suite knows it, whichever protocol carries it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model made."""

    id: str
    """Names it; its result names it too."""
    name: str
    """Of the function."""
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn."""

    role: str
    """user, assistant or tool."""
    content: str
    """Its text; empty for an answer that is calls alone."""
    calls: tuple[Call, ...] = ()
    """What the model called."""
    call_id: str = ""
    """The call that a tool's result answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """What the model may call."""

    name: str
    """As calls name it."""
    description: str
    """For the model."""
    parameters: dict[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """What one request asks to be continued."""

    messages: tuple[Message, ...]
    """Oldest first."""
    functions: tuple[Function, ...] = ()
    """What may be called."""
    must_call: bool = False
    """The answer is one call; otherwise it is text, and functions are only shown."""
