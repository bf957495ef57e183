"""Who is next when keys compete: start-time fair queueing, counted in prompt tokens.

Each key has a line of its own, first come, first served. The head of a line carries a start tag in
virtual time: the later of now and the end of the line's last service; a service moves that end on
by tokens over weight. The smallest start tag is served next. Between two services of a waiting
head every other line can take its weighted share and one prompt more, so nobody starves. Only
heads carry tags: entries that leave a line without service cost its key nothing.

Goyal, Vin, Cheng: Start-time Fair Queueing (SIGCOMM 1996).
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Entry(Generic[T]):
    """One waiting item; equal only to itself."""

    item: T
    """What waits."""
    key: str
    """Whose line it is in."""
    cost: int
    """Its prompt tokens."""


@dataclass(slots=True)
class _Line(Generic[T]):
    weight: float
    start: float
    end: float
    cost: int = 0
    entries: OrderedDict[int, Entry[T]] = field(default_factory=OrderedDict)


class FairQueue(Generic[T]):
    """Waiting items by key; memory is that of the items, keys without any are forgotten."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        self._served: dict[str, float] = {}
        self._now = 0.0
        self._count = 0
        self.cost = 0

    def __len__(self) -> int:
        """Items that wait."""
        return self._count

    def push(self, item: T, *, key: str, cost: int, weight: float = 1.0) -> Entry[T]:
        """Appends to the line of `key`, whose weight becomes `weight` (above 0)."""
        entry = Entry(item, key, cost)
        line = self._lines.get(key)
        if line is None:
            end = self._served.pop(key, 0.0)
            line = self._lines[key] = _Line(weight, start=max(self._now, end), end=end)
        line.weight = weight
        line.entries[id(entry)] = entry
        line.cost += cost
        self._count += 1
        self.cost += cost
        return entry

    def head(self) -> Entry[T] | None:
        """Who is next; None when nobody waits. Changes nothing."""
        line = self._first_line()
        return None if line is None else next(iter(line.entries.values()))

    def pop(self) -> Entry[T]:
        """Takes the next one out as served; somebody must wait."""
        line = self._first_line()
        assert line is not None, "nobody waits"
        entry = next(iter(line.entries.values()))
        self._now = line.start
        line.end = line.start + entry.cost / line.weight
        line.start = line.end
        self._drop(line, entry)
        return entry

    def remove(self, entry: Entry[T]) -> bool:
        """Takes one out unserved; False when it does not wait (any more)."""
        line = self._lines.get(entry.key)
        if line is None or id(entry) not in line.entries:
            return False
        self._drop(line, entry)
        return True

    def cost_of(self, key: str) -> int:
        """What waits in one line."""
        line = self._lines.get(key)
        return 0 if line is None else line.cost

    def ahead(self, *, key: str, cost: int, weight: float = 1.0) -> int:
        """About what is served before a new item of `key` is: its line, and the others' shares."""
        own = self.cost_of(key)
        share = (own + cost) / weight
        others = (
            min(float(line.cost), share * line.weight)
            for name, line in self._lines.items()
            if name != key
        )
        return own + round(sum(others))

    def _first_line(self) -> _Line[T] | None:
        # A dict keeps insertion order, so equal tags are served in order of arrival.
        return min(self._lines.values(), key=lambda line: line.start, default=None)

    def _drop(self, line: _Line[T], entry: Entry[T]) -> None:
        del line.entries[id(entry)]
        line.cost -= entry.cost
        self._count -= 1
        self.cost -= entry.cost
        if line.entries:
            return
        del self._lines[entry.key]
        if not self._lines:
            # Nobody is behind any more: what was served before gives no advantage.
            self._served.clear()
            self._now = 0.0
        elif line.end > self._now:
            self._served[entry.key] = line.end
            self._forget()

    def _forget(self) -> None:
        """Drops the memory of services that virtual time has caught up with."""
        if len(self._served) > 2 * len(self._lines) + 64:
            self._served = {key: end for key, end in self._served.items() if end > self._now}
