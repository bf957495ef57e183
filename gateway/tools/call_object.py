"""Reads one call object, character by character."""

import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from gateway.tools.balance import Balance
from gateway.tools.base import ToolFormat
from gateway.tools.events import ArgumentsPiece, CallEvent, CallStarted


class Progress(Enum):
    """How far a reader is."""

    MORE = "more"
    DONE = "done"
    BROKEN = "broken"


class ObjectReader(Protocol):
    """Reads one object from its first brace to its last."""

    started: bool
    """Whether the call was announced."""

    def take(self, char: str, out: list[CallEvent]) -> Progress:
        """The next character; what is certain goes to `out`."""


class EnforcedObject:
    """An object that a grammar wrote: arguments are passed on as they come.

    Args:
        form: how the object begins.
        names: tools that may be called.
        index: of the call.
    """

    def __init__(self, form: ToolFormat, *, names: Sequence[str], index: int) -> None:
        self.started = False
        self._heads = {form.head(name): name for name in names}
        self._new_id: Callable[[], str] = form.new_id
        self._index = index
        self._seen = ""
        self._arguments = Balance()
        self._arguments_done = False

    def take(self, char: str, out: list[CallEvent]) -> Progress:
        """See `ObjectReader`."""
        if not self.started:
            return self._take_head(char, out)
        if not self._arguments_done:
            self._arguments_done = self._arguments.closes(char)
            out.append(ArgumentsPiece(self._index, char))
            return Progress.MORE
        return Progress.DONE if char == "}" else Progress.BROKEN

    def _take_head(self, char: str, out: list[CallEvent]) -> Progress:
        self._seen += char
        name = self._heads.get(self._seen)
        if name is not None:
            self.started = True
            out.append(CallStarted(self._index, self._new_id(), name))
            return Progress.MORE
        known = any(head.startswith(self._seen) for head in self._heads)
        return Progress.MORE if known else Progress.BROKEN


class FreeObject:
    """An object that a model wrote by itself: it is a call only once all of it is right.

    Args:
        form: the key of the arguments.
        names: tools that may be called.
        index: of the call.
    """

    def __init__(self, form: ToolFormat, *, names: Sequence[str], index: int) -> None:
        self.started = False
        self._form = form
        # Whatever the model wrote may be looked for, also what no set can look for.
        self._names = tuple(names)
        self._index = index
        self._seen: list[str] = []
        self._object = Balance()

    def take(self, char: str, out: list[CallEvent]) -> Progress:
        """See `ObjectReader`."""
        self._seen.append(char)
        if not self._object.closes(char):
            return Progress.MORE
        call = self._read("".join(self._seen))
        if call is None:
            return Progress.BROKEN
        name, arguments = call
        self.started = True
        out.append(CallStarted(self._index, self._form.new_id(), name))
        out.append(ArgumentsPiece(self._index, arguments))
        return Progress.DONE

    def _read(self, text: str) -> tuple[str, str] | None:
        """Name and arguments as JSON text; None when it is no call of a known tool."""
        try:
            value = json.loads(text)
            name = value.get("name")
            arguments = value.get(self._form.arguments_key, {})
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            written.encode()  # half of a surrogate pair is JSON, but no text that can be sent
        except (ValueError, AttributeError, RecursionError):
            return None
        if name not in self._names or not isinstance(arguments, dict):
            return None
        return name, written
