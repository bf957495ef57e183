"""Parts of a memory that transfers may still read, whether or not somebody waits for them."""

from collections.abc import Callable, Iterable
from threading import Lock

from shared.kv.memory import MemoryPart


class MemoryReads:
    """Kept by the transports that read registered memory, asked by whoever lends it; any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._parts: dict[int, MemoryPart] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        """Parts that may be read now."""
        return len(self._parts)

    def on_end(self, listener: Callable[[], None]) -> None:
        """Calls it after reads ended, on the thread that knows it."""
        self._listeners.append(listener)

    def begin(self, parts: Iterable[MemoryPart]) -> None:
        """From now on these parts may be read."""
        with self._lock:
            self._parts.update((id(part), part) for part in parts)

    def end(self, parts: Iterable[MemoryPart]) -> None:
        """Nothing reads these parts any more; twice is fine."""
        with self._lock:
            ended = [self._parts.pop(id(part), None) for part in parts]
        if any(part is not None for part in ended):
            for listener in self._listeners:
                listener()

    def may_touch(self, part: MemoryPart) -> bool:
        """Whether any byte of a part may still be read."""
        end = part.start + part.nbytes
        with self._lock:
            return any(
                each.memory is part.memory
                and each.start < end
                and part.start < each.start + each.nbytes
                for each in self._parts.values()
            )
