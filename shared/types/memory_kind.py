"""The two kinds of memory that KV is handed over in, and the setting that chooses one."""

from enum import Enum

from shared.errors import ConfigError

AUTO = "auto"
"""The setting that takes device memory where it helps."""


class MemoryKind(Enum):
    """Who touches the bytes of a handoff."""

    HOST = "host"
    """The CPU: sums are CRC-32, copies go through its memory."""
    DEVICE = "device"
    """The device that computes: bytes are written, summed and scattered there."""


def check_memory(role: str, setting: str) -> None:
    """Refuses what kv_memory cannot be.

    Raises:
        ConfigError: it is none of the three words.
    """
    known = (AUTO, *(kind.value for kind in MemoryKind))
    if setting not in known:
        raise ConfigError(
            f"{role} setting kv_memory cannot be {setting!r}: choose {', '.join(known)}",
            param="kv_memory",
        )
