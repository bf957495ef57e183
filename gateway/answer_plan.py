"""What the answers of a request must be, and how they are read; settled before any work is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.tools.reading import CallReading


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """For every answer of one request."""

    grammar: str = ""
    """What the workers enforce; empty: nothing."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools as the chat template prints them."""
    held: frozenset[str] = frozenset()
    """Tools whose arguments are held to their schemas."""
    reading: CallReading | None = None
    """How calls are read; None: the text is content."""
    visible: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that stand in the text all the same: markers of calls."""

    def variables(self) -> dict[str, Any]:
        """What the chat template needs to know of it."""
        return {"tools": list(self.tools)} if self.tools else {}


ANY_ANSWER = AnswerPlan()
"""Any text."""
