"""Writes of a NIXL agent that could be neither finished nor taken back: what they read is kept."""

from collections.abc import Callable, Iterable

from shared.kv.memory import MemoryPart
from shared.kv.memory_reads import MemoryReads
from shared.transport.nixl_chunks import Posted

RECLAIM_SECONDS = 0.25
"""Pause between two looks at writes that hang."""


class HungWrites:
    """Owned by an agent; changed on its thread, asked on any.

    Args:
        reads: told which parts of readable memory transfers may read.
    """

    def __init__(self, reads: MemoryReads) -> None:
        self._reads = reads
        self._writes: list[tuple[str, Posted]] = []

    def __len__(self) -> int:
        return len(self._writes)

    def names(self, peer: str) -> bool:
        """Whether a write to this peer hangs."""
        return any(name == peer for name, _ in self._writes)

    def add(self, peer: str, posted: Posted) -> None:
        """This write did not end, and reads its chunk until it does."""
        self._writes.append((peer, posted))

    def begin(self, parts: Iterable[MemoryPart]) -> None:
        """Parts are about to be written."""
        self._reads.begin(parts)

    def end(self, parts: Iterable[MemoryPart]) -> None:
        """A call that wrote parts is over: they are read no more, but by writes that hang."""
        hung = {id(posted.local) for _, posted in self._writes}
        self._reads.end([part for part in parts if id(part) not in hung])

    def look(self, release: Callable[[str, Posted], None], runs: Callable[[Posted], bool]) -> None:
        """Releases writes that ended since; those that `release` adds again hang on."""
        ended = [(peer, posted) for peer, posted in self._writes if not runs(posted)]
        gone = {id(posted) for _, posted in ended}
        self._writes = [each for each in self._writes if id(each[1]) not in gone]
        for peer, posted in ended:
            release(peer, posted)
        self.end([posted.local for _, posted in ended])

    def all_ended(self) -> None:
        """The agent is gone, and with it whatever it wrote."""
        hung, self._writes = self._writes, []
        self._reads.end([posted.local for _, posted in hung])
