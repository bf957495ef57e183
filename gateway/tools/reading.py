"""How the calls of one request are found in its answers."""

from dataclasses import dataclass

from gateway.tools.base import ToolFormat
from gateway.tools.parser import ToolCallParser


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReading:
    """Settled with the request; every answer gets a parser of its own."""

    form: ToolFormat
    """How the model writes calls."""
    names: tuple[str, ...]
    """Tools that may be called."""
    enforced: bool
    """A grammar makes every call right."""

    def parser(self) -> ToolCallParser:
        """The reader of one answer."""
        return ToolCallParser(self.form, names=self.names, enforced=self.enforced)
