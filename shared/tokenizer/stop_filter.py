"""Stop strings in streamed text."""

from collections.abc import Sequence


class StopFilter:
    """Passes text on until a stop string appears, whatever the cuts between pieces.

    Of the text seen so far only the longest suffix that may still become a stop string is withheld.
    The match that ends first wins, and of two that end together the longer one: the result is the
    same for every chunking.

    Args:
        stops: the stop strings; empty strings are not allowed.
        include_match: the matched string stays in the text.
    """

    def __init__(self, stops: Sequence[str], *, include_match: bool = False) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = tuple(stops)
        self._include = include_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Returns the text that is certain by now and sets `matched` when a stop string ended it.

        Args:
            text: the next piece.
            armed: False while too few tokens exist: matches are passed on as text.
        """
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        if armed and self._find():
            released, self._held = self._held, ""
            return released
        keep = self._undecided()
        released = self._held[: len(self._held) - keep]
        self._held = self._held[len(released) :]
        return released

    def flush(self) -> str:
        """Returns what was withheld; to be called once, when the answer ended without a match."""
        released, self._held = self._held, ""
        return released

    def _find(self) -> bool:
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if not found:
            return False
        end, start, self.matched = min(found)
        self._held = self._held[: end if self._include else start]
        return True

    def _undecided(self) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0
