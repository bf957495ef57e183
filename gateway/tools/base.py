"""How a family of models writes tool calls in its text: data alone."""

import json
import secrets
import string
from dataclasses import dataclass

WHITE_SPACE = " \t\r\n"

_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A region of text holds one or several call objects.

    A region is written as opener, `before`, objects with `separator` between them, `after`, `end`.
    """

    name: str
    """In the registry."""
    openers: tuple[str, ...]
    """What begins a region of calls in running text; the first is the one that is enforced. The
    brace of the object itself where a family has no marker."""
    before: str
    """Written between opener and object."""
    after: str
    """Written between object and `end`."""
    end: str
    """What ends a region; empty: only the end of the answer."""
    separator: str
    """Between the objects of one region; empty: one object a region."""
    between: str
    """Characters that may stand around objects in a region."""
    arguments_key: str
    """Key of the arguments beside `name`."""
    only_at_start: bool = False
    """Calls are the whole answer: text before them makes them text."""
    several: bool = True
    """Whether the family can call several tools at once."""
    id_prefix: str = "call_"
    """Begins the ids of calls."""
    id_length: int = 24
    """Further characters of an id."""

    @property
    def marked(self) -> bool:
        """Whether a marker of its own tells calls from text."""
        return self.openers[0] != "{"

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be special tokens in the tokenizer, and must be seen all the same."""
        return tuple(text for text in (*self.openers, self.end) if len(text) > 1)

    def head(self, name: str) -> str:
        """How an object begins, up to its arguments."""
        return f'{{"name": {json.dumps(name)}, "{self.arguments_key}": '

    def new_id(self) -> str:
        """A fresh id of a call."""
        return self.id_prefix + "".join(
            secrets.choice(_ALPHANUMERIC) for _ in range(self.id_length)
        )
