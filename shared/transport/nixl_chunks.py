"""A chunk on its way through a NIXL agent: asked for, ready, given to the library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.errors import HandoffError, TransportError
from shared.kv.memory import MemoryPart


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectWrite:
    """One chunk to be written into a peer's memory."""

    address: int
    """Where, in the peer's address space."""
    device: int = 0
    """Ordinal of its GPU, in the peer's process."""
    data: memoryview | MemoryPart
    """The chunk: of the host, at most as long as a staging slot; or of registered memory, which is
    read where it is, and summed by CRC-32 there if it is the host's."""
    notice: Callable[[int | None], bytes]
    """Makes the notice that follows the chunk, from its CRC-32 or, where none was made, None."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A chunk that can go: staged, or summed where it is."""

    local: MemoryPart
    """What is read."""
    slot: int | None
    """The staging slot that this is; None: it is registered memory of somebody else."""
    write: DirectWrite
    """Where it goes."""
    notice: bytes
    """What follows it."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A chunk that the library was given."""

    handle: Any
    """The library's."""
    local: MemoryPart
    """What it reads."""
    slot: int | None
    """The staging slot that this is; None: it is registered memory of somebody else."""
    nbytes: int
    """Its size."""
    at: float
    """Monotonic time of its post."""


def write_failed(error: object) -> HandoffError:
    """What is raised for a chunk that the library could not write."""
    return TransportError(
        f"a chunk could not be written into the peer's memory ({error}): its process died or "
        "cannot be reached; start a new attempt, on another worker if it recurs"
    )
