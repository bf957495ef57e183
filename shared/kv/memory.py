"""Memory that KV bytes lie in, whether the host's or a GPU's, and pieces of it.

Only pieces name bytes to transports: one that can read this memory by itself (it is registered with
the library) needs nothing copied, and every other one asks for the bytes on the host.
"""

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from shared.types.memory_kind import MemoryKind

HOST_SEGMENT = "DRAM"
"""Name that transport libraries have for memory of the host."""


class KvMemory(Protocol):
    """One buffer; `store` and `fetch` block."""

    @property
    def kind(self) -> MemoryKind:
        """How its bytes are treated: by the host, or where they are."""

    @property
    def segment(self) -> str:
        """What a transport library registers it as: DRAM or VRAM."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    @property
    def address(self) -> int:
        """Its first byte, in this process's address space."""

    @property
    def device_index(self) -> int:
        """Ordinal of its GPU in this process; 0 on the host."""

    def store(self, start: int, data: memoryview) -> None:
        """Copies bytes of the host to `start`."""

    def fetch(self, start: int, length: int) -> memoryview:
        """Bytes on the host: the memory itself where it is the host's, a copy otherwise."""

    def enter_thread(self) -> None:
        """Makes the calling thread one that may hand this memory to a library."""

    def beside(self, nbytes: int) -> "KvMemory":
        """More memory of the same kind, at the same place."""


class HostMemory(mmap.mmap):
    """Lazily touched anonymous memory, of huge pages where the kernel has them.

    A write from another process looks the pages up one by one: with huge ones it is 1.6 times as
    fast.

    Args:
        nbytes: its size.
    """

    kind = MemoryKind.HOST
    segment = HOST_SEGMENT
    device_index = 0

    def __new__(cls, nbytes: int) -> "HostMemory":  # noqa: D102  documented by its class
        memory = super().__new__(cls, -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel built without them; nothing depends on the advice
                memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    @property
    def nbytes(self) -> int:
        """See `KvMemory.nbytes`."""
        return len(self)

    @property
    def address(self) -> int:
        """See `KvMemory.address`."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    def store(self, start: int, data: memoryview) -> None:
        """See `KvMemory.store`."""
        memoryview(self)[start : start + data.nbytes] = data

    def fetch(self, start: int, length: int) -> memoryview:
        """See `KvMemory.fetch`; writable."""
        return memoryview(self)[start : start + length]

    def enter_thread(self) -> None:
        """See `KvMemory.enter_thread`; nothing to do."""

    def beside(self, nbytes: int) -> "HostMemory":
        """See `KvMemory.beside`."""
        return HostMemory(nbytes)


Allocator = Callable[[int], KvMemory]
"""Makes memory of so many bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPart:
    """Bytes of a memory."""

    memory: KvMemory
    """Where they lie."""
    start: int
    """The first of them."""
    nbytes: int
    """How many."""

    @property
    def address(self) -> int:
        """The first of them, in this process's address space."""
        return self.memory.address + self.start

    def part(self, start: int, length: int) -> "MemoryPart":
        """Some of them."""
        assert 0 <= start <= start + length <= self.nbytes, "a part lies within"
        return MemoryPart(self.memory, self.start + start, length)

    def on_host(self) -> memoryview:
        """The bytes on the host; blocks while they are copied."""
        return self.memory.fetch(self.start, self.nbytes)


KvBytes = memoryview | bytes | MemoryPart
"""Bytes to send: of the host, or in memory that a transport may read by itself."""
