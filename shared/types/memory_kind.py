"""The two kinds of memory that KV is handed over in."""

from enum import Enum


class MemoryKind(Enum):
    """Who touches the bytes of a handoff."""

    HOST = "host"
    """The CPU: sums are CRC-32, copies go through its memory."""
    DEVICE = "device"
    """The device that computes: bytes are written, summed and scattered there."""
