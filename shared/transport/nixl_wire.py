"""What travels beside the bytes of the NIXL transport: a fingerprint, a notice of each chunk."""

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum

from shared.errors import TransportError
from shared.transport.base import MAX_CHUNK_BYTES

NAME = "nixl"
"""Name in grants, cards and metrics."""

WIRE_VERSION = 1
"""Version of lanes and notices; part of the fingerprint."""

KEY_BYTES = 16
"""Length of a lane's key."""

_MAGIC = int.from_bytes(b"TNDW", "little")

MAX_DIRECT_BYTES = 1 << 40
"""Longest chunk that went from memory to memory without a copy; its lease bounds it far below."""

# magic, version, check, slot, chunk crc32, generation, offset, chunk length, lane key
_NOTICE = struct.Struct("<IHHIIQQQ16s")


class NoticeCheck(Enum):
    """How the receiver of a notice checks its chunk."""

    CRC32 = 0
    """At once, by the notice's CRC-32."""
    MANIFEST = 1
    """By the sums of the manifest, when all is there: the chunk is in a device's memory."""


_CHECKS = {check.value: check for check in NoticeCheck}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Says that a chunk is in the slab; arrives after it."""

    key: bytes
    """Key of the lane, which only its sender was told."""
    slot: int
    """Slot of the slab."""
    generation: int
    """Generation of the slot."""
    offset: int
    """Start in the lease, in bytes."""
    length: int
    """Bytes."""
    crc32: int
    """Checksum of the chunk as it was sent; 0 where the manifest checks it."""
    check: NoticeCheck = NoticeCheck.CRC32
    """How it is checked."""


def fingerprint(*, library_version: str, memory: str) -> str:
    """Hash of what both ends must have alike.

    Args:
        library_version: of NIXL: its metadata is opaque, and no promise of it outlives a version.
        memory: kind of the registered memory, and how its bytes are treated.
    """
    text = f"{NAME} wire {WIRE_VERSION}; library {library_version}; memory {memory}"
    return hashlib.sha256(text.encode()).hexdigest()


def encode_notice(notice: Notice) -> bytes:
    """A notice as the library carries it."""
    return _NOTICE.pack(
        _MAGIC,
        WIRE_VERSION,
        notice.check.value,
        notice.slot,
        notice.crc32,
        notice.generation,
        notice.offset,
        notice.length,
        notice.key,
    )


def decode_notice(raw: bytes) -> Notice:
    """Reads a notice.

    Raises:
        TransportError: it is none, or one of another version or of an impossible length.
    """
    if len(raw) != _NOTICE.size:
        raise _refused(f"it has {len(raw)} bytes instead of {_NOTICE.size}")
    magic, version, check, slot, crc, generation, offset, length, key = _NOTICE.unpack(raw)
    if magic != _MAGIC or version != WIRE_VERSION:
        raise _refused(f"magic number or version {version} is not ours")
    if check not in _CHECKS:
        raise _refused(f"check {check} is not known")
    most = MAX_CHUNK_BYTES if _CHECKS[check] is NoticeCheck.CRC32 else MAX_DIRECT_BYTES
    if not 0 < length <= most:
        raise _refused(f"a chunk of {length} bytes where 1 to {most} are allowed")
    return Notice(
        key=key,
        slot=slot,
        generation=generation,
        offset=offset,
        length=length,
        crc32=crc,
        check=_CHECKS[check],
    )


def _refused(why: str) -> TransportError:
    return TransportError(
        f"a notice of a direct write was refused: {why}; the sender runs another version or the "
        "notice was damaged; compare versions if it happens again"
    )
