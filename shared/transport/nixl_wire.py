"""What travels beside the bytes of the NIXL transport: a fingerprint, a notice of each chunk."""

import hashlib
import struct
from dataclasses import dataclass

from shared.errors import TransportError
from shared.transport.base import MAX_CHUNK_BYTES

NAME = "nixl"
"""Name in grants, cards and metrics."""

WIRE_VERSION = 1
"""Version of lanes and notices; part of the fingerprint."""

KEY_BYTES = 16
"""Length of a lane's key."""

_MAGIC = int.from_bytes(b"TNDW", "little")

# magic, version, unused, slot, chunk crc32, generation, offset, chunk length, lane key
_NOTICE = struct.Struct("<IHHIIQQQ16s")


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
    """Checksum of the chunk as it was sent."""


def fingerprint(*, library_version: str, memory: str) -> str:
    """Hash of what both ends must have alike.

    Args:
        library_version: of NIXL: its metadata is opaque, and no promise of it outlives a version.
        memory: kind of the registered memory.
    """
    text = f"{NAME} wire {WIRE_VERSION}; library {library_version}; memory {memory}"
    return hashlib.sha256(text.encode()).hexdigest()


def encode_notice(notice: Notice) -> bytes:
    """A notice as the library carries it."""
    return _NOTICE.pack(
        _MAGIC,
        WIRE_VERSION,
        0,
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
    magic, version, _, slot, crc, generation, offset, length, key = _NOTICE.unpack(raw)
    if magic != _MAGIC or version != WIRE_VERSION:
        raise _refused(f"magic number or version {version} is not ours")
    if not 0 < length <= MAX_CHUNK_BYTES:
        raise _refused(f"a chunk of {length} bytes where 1 to {MAX_CHUNK_BYTES} are allowed")
    return Notice(
        key=key, slot=slot, generation=generation, offset=offset, length=length, crc32=crc
    )


def _refused(why: str) -> TransportError:
    return TransportError(
        f"a notice of a direct write was refused: {why}; the sender runs another version or the "
        "notice was damaged; compare versions if it happens again"
    )
