"""The wire form of frames, written and read by hand: protobuf `PushRequest{bytes frame = 1}`.

A frame is a 40-byte little-endian header and its payload. Building one copies the payload once;
reading one copies nothing.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from shared.errors import TransportError
from shared.kv.checksum import crc32
from shared.transport.base import MAX_CHUNK_BYTES

PROTOCOL_VERSION = 1
"""Version of the frame format; both ends must have the same."""

_MAGIC = int.from_bytes(b"TNDM", "little")

# magic, version, kind, slot, payload crc32, generation, offset, payload length
_HEADER = struct.Struct("<IHHIIQQQ")

HEADER_BYTES = _HEADER.size
"""Bytes before the payload."""

_FIELD_TAG = 0x0A  # field 1, length-delimited

_MAX_VARINT_BYTES = 5

_MORE = 0x80  # set on every varint byte but the last

_LOW_BITS = 0x7F


class FrameKind(IntEnum):
    """What a frame is."""

    DATA = 1
    HEARTBEAT = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame as it was read."""

    kind: FrameKind
    """What it is."""
    slot: int
    """Slot of the slab."""
    generation: int
    """Generation of the slot."""
    offset: int
    """Start in the lease, in bytes."""
    payload: memoryview
    """The bytes; a view of the message."""


def encode_frame(
    kind: FrameKind,
    *,
    slot: int,
    generation: int,
    offset: int = 0,
    payload: memoryview | bytes = b"",
) -> bytes:
    """A serialised PushRequest."""
    length = len(payload)
    total = crc32(payload)
    header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, kind, slot, total, generation, offset, length)
    return b"".join((_prefix(HEADER_BYTES + length), header, payload))


def decode_frame(message: bytes) -> Frame:
    """Reads a serialised PushRequest.

    Raises:
        TransportError: not a frame, another version, a wrong length or a wrong checksum.
    """
    start = _skip_prefix(message)
    if len(message) - start < HEADER_BYTES:
        raise _refused("the header is cut short")
    magic, version, kind, slot, crc, generation, offset, length = _HEADER.unpack_from(
        message, start
    )
    if magic != _MAGIC:
        raise _refused("the magic number is wrong")
    if version != PROTOCOL_VERSION:
        raise _refused(f"version {version} is not {PROTOCOL_VERSION}")
    payload = memoryview(message)[start + HEADER_BYTES :]
    if length != len(payload) or length > MAX_CHUNK_BYTES:
        raise _refused(
            f"{len(payload)} payload bytes where the header says {length} "
            f"and {MAX_CHUNK_BYTES} are allowed"
        )
    if crc32(payload) != crc:
        raise _refused("the checksum of the payload is wrong")
    try:
        known_kind = FrameKind(kind)
    except ValueError:
        raise _refused(f"kind {kind} is unknown") from None
    return Frame(kind=known_kind, slot=slot, generation=generation, offset=offset, payload=payload)


def _prefix(length: int) -> bytes:
    out = bytearray([_FIELD_TAG])
    while length > _LOW_BITS:
        out.append(length & _LOW_BITS | _MORE)
        length >>= 7
    out.append(length)
    return bytes(out)


def _skip_prefix(message: bytes) -> int:
    if not message or message[0] != _FIELD_TAG:
        raise _refused("it is not a push message")
    length = 0
    for index in range(_MAX_VARINT_BYTES):
        position = 1 + index
        if position >= len(message):
            break
        byte = message[position]
        length |= (byte & _LOW_BITS) << (7 * index)
        if byte < _MORE:
            if position + 1 + length != len(message):
                raise _refused("the message length is wrong")
            return position + 1
    raise _refused("the message length cannot be read")


def _refused(why: str) -> TransportError:
    return TransportError(
        f"a transfer frame was refused: {why}; bytes were damaged or the sender runs another "
        "version; retry with a new attempt, and compare versions if it happens again"
    )
