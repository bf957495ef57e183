"""Parts that may still be read: who overlaps them, and who hears of their end."""

from shared.kv.memory import HostMemory, MemoryPart
from shared.kv.memory_reads import MemoryReads


def test_only_what_overlaps_in_the_same_memory_is_touched() -> None:
    memory, other = HostMemory(4096), HostMemory(4096)
    reads, part = MemoryReads(), MemoryPart(memory, 100, 100)
    reads.begin([part])
    touched = [reads.may_touch(MemoryPart(memory, at, 50)) for at in (50, 51, 199, 200)]
    assert touched == [False, True, True, False]
    assert not reads.may_touch(MemoryPart(other, 100, 100))
    reads.end([part])
    assert not reads.may_touch(part)


def test_an_end_is_told_once() -> None:
    reads, part = MemoryReads(), MemoryPart(HostMemory(4096), 0, 10)
    told: list[int] = []
    reads.on_end(lambda: told.append(reads.count))
    reads.begin([part])
    reads.end([part])
    reads.end([part])
    assert told == [0]
