"""Tells content from tool calls in a growing text; the same for every cut into pieces.

What turns out not to be a call is content: a model's mistake is text, never an error.
"""

from collections.abc import Sequence
from enum import Enum

from gateway.tools.base import WHITE_SPACE, ToolFormat
from gateway.tools.call_object import EnforcedObject, FreeObject, ObjectReader, Progress
from gateway.tools.events import CallEvent, ContentPiece, joined


class _Place(Enum):
    TEXT = "text"
    """Content; an opener may come."""
    GAP = "gap"
    """In a region, around objects."""
    OBJECT = "object"
    """In an object."""
    PLAIN = "plain"
    """Content to the end."""


class ToolCallParser:
    """One answer's reader. White space beside a call belongs to it and is dropped.

    Args:
        form: how the model writes calls.
        names: tools that may be called.
        enforced: a grammar wrote the calls, so that arguments can be passed on as they come.
    """

    def __init__(self, form: ToolFormat, *, names: Sequence[str], enforced: bool) -> None:
        self._form = form
        self._names = tuple(names)
        self._make = EnforcedObject if enforced else FreeObject
        self._place = _Place.TEXT
        self._held = ""
        """Content that may still turn out to belong to a call."""
        self._raw = ""
        """All of the region since its opener or its last complete call."""
        self._gap = ""
        self._after_call = False
        self._object: ObjectReader | None = None
        self.calls = 0

    @property
    def complete(self) -> bool:
        """Whether there are calls and none of them is cut off."""
        return self.calls > 0 and not (self._object is not None and self._object.started)

    def push(self, text: str) -> list[CallEvent]:
        """Takes a piece of text; what is certain by now."""
        out: list[CallEvent] = []
        for char in text:
            self._take(char, out)
        return joined(out)

    def finish(self) -> list[CallEvent]:
        """The text is over; to be called once."""
        out: list[CallEvent] = []
        if self._place is _Place.TEXT:
            self._content(self._held, out)
            return out
        if self._place is _Place.OBJECT:
            assert self._object is not None
            if not self._object.started:
                self._give_up(out)
        elif self._place is _Place.GAP and not self._ended_well():
            self._give_up(out)
            self._content(self._held, out)
        return joined(out)

    def _take(self, char: str, out: list[CallEvent]) -> None:
        match self._place:
            case _Place.TEXT:
                self._take_text(char, out)
            case _Place.GAP:
                self._raw += char
                self._take_gap(char, out)
            case _Place.OBJECT:
                self._raw += char
                self._take_object(char, out)
            case _Place.PLAIN:
                out.append(ContentPiece(char))

    def _take_text(self, char: str, out: list[CallEvent]) -> None:
        self._held += char
        while True:
            marker = self._held.lstrip(WHITE_SPACE)
            if marker in self._form.openers:
                self._open(marker, out)
                return
            if any(opener.startswith(marker) for opener in self._form.openers):
                return
            rest = marker[1:]
            self._content(self._held[: len(self._held) - len(rest)], out)
            self._held = rest
            if self._form.only_at_start:
                self._place = _Place.PLAIN
                self._content(self._held, out)
                self._held = ""
                return

    def _open(self, opener: str, out: list[CallEvent]) -> None:
        self._raw, self._held, self._gap = self._held, "", ""
        self._place = _Place.GAP
        if opener == "{":
            self._take_gap("{", out)

    def _take_gap(self, char: str, out: list[CallEvent]) -> None:
        waiting = self._gap.strip(self._form.between)
        if char == "{" and not waiting:
            self._gap = ""
            self._object = self._make(self._form, names=self._names, index=self.calls)
            self._place = _Place.OBJECT
            self._take_object(char, out)
            return
        self._gap += char
        seen = self._gap.lstrip(self._form.between)
        if not seen:
            return
        end = self._form.end
        if seen == end and self._raw_is_after_call():
            self._raw, self._gap = "", ""
            self._after_call = True
            self._place = _Place.TEXT
        elif not (end and end.startswith(seen)):
            self._give_up(out)

    def _take_object(self, char: str, out: list[CallEvent]) -> None:
        assert self._object is not None
        started = self._object.started
        progress = self._object.take(char, out)
        if self._object.started and not started:
            self.calls += 1
        if progress is Progress.MORE:
            return
        self._object = None
        if progress is Progress.DONE:
            self._raw, self._gap = "", ""
            self._place = _Place.GAP
        else:
            self._give_up(out)

    def _give_up(self, out: list[CallEvent]) -> None:
        """What looked like a call is content, and so is what follows up to the next opener."""
        raw, gap = self._raw, self._gap
        self._raw, self._gap, self._object = "", "", None
        self._place = _Place.PLAIN if self._form.only_at_start else _Place.TEXT
        self._content(raw[: len(raw) - len(gap)], out)
        # What came instead of an object may begin the next region.
        for char in gap:
            self._take(char, out)

    def _content(self, text: str, out: list[CallEvent]) -> None:
        if self._after_call:
            text = text.lstrip(WHITE_SPACE)
        if text:
            self._after_call = False
            out.append(ContentPiece(text))

    def _raw_is_after_call(self) -> bool:
        """Whether this region has had a call: its opener is then no longer in `_raw`."""
        return self.calls > 0 and self._raw == self._gap

    def _ended_well(self) -> bool:
        """Whether nothing but a cut end is left of a region that had a call."""
        seen = self._gap.lstrip(self._form.between)
        return self._raw_is_after_call() and self._form.end.startswith(seen)
