"""Frames written by hand are protobuf messages, and damaged ones are named."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.tandem.v1 import transfer_pb2
from shared.errors import TransportError
from shared.transport.frames import (
    HEADER_BYTES,
    PROTOCOL_VERSION,
    FrameKind,
    decode_frame,
    encode_frame,
)

FRAMES = st.tuples(
    st.sampled_from(FrameKind),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
)


def _encode(kind: FrameKind, slot: int, generation: int, offset: int, payload: bytes) -> bytes:
    return encode_frame(kind, slot=slot, generation=generation, offset=offset, payload=payload)


@given(FRAMES)
def test_round_trip(parts) -> None:
    frame = decode_frame(_encode(*parts))
    read = (frame.kind, frame.slot, frame.generation, frame.offset, bytes(frame.payload))
    assert read == parts


@given(FRAMES)
def test_the_generated_message_reads_and_writes_the_same_bytes(parts) -> None:
    message = _encode(*parts)
    parsed = transfer_pb2.PushRequest.FromString(message)
    assert parsed.frame[:4] == b"TNDM"
    assert len(parsed.frame) == HEADER_BYTES + len(parts[4])
    assert parsed.SerializeToString() == message


def test_the_header_is_the_documented_one() -> None:
    frame = transfer_pb2.PushRequest.FromString(_encode(FrameKind.DATA, 7, 8, 9, b"abc")).frame
    assert struct.unpack_from("<4sHHIIQQQ", frame) == (
        b"TNDM",
        PROTOCOL_VERSION,
        1,
        7,
        0x352441C2,
        8,
        9,
        3,
    )


@given(FRAMES, st.data())
def test_any_flipped_bit_of_a_payload_is_noticed(parts, data) -> None:
    kind, slot, generation, offset, _ = parts
    message = bytearray(_encode(kind, slot, generation, offset, b"payload"))
    position = data.draw(st.integers(len(message) - 7, len(message) - 1))
    message[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TransportError, match="checksum"):
        decode_frame(bytes(message))


@given(st.binary(max_size=120))
def test_arbitrary_bytes_never_raise_anything_else(message: bytes) -> None:
    with pytest.raises(TransportError):
        decode_frame(message)


@given(FRAMES, st.integers(1, 400))
def test_a_cut_message_is_refused(parts, cut: int) -> None:
    message = _encode(*parts)
    with pytest.raises(TransportError):
        decode_frame(message[: max(0, len(message) - cut)])


def _with_header(**changes: int) -> bytes:
    values = {
        "magic": int.from_bytes(b"TNDM", "little"),
        "version": PROTOCOL_VERSION,
        "kind": 1,
        "slot": 0,
        "crc": 0,
        "generation": 0,
        "offset": 0,
        "length": 0,
    }
    frame = struct.pack("<IHHIIQQQ", *(values | changes).values())
    return transfer_pb2.PushRequest(frame=frame).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"magic": 1}, "magic"),
        ({"version": 9}, "version 9"),
        ({"kind": 0}, "kind 0"),
        ({"kind": 4}, "kind 4"),
        ({"length": 5}, "header says 5"),
        ({"crc": 1}, "checksum"),
    ],
)
def test_each_wrong_field_is_named(changes: dict[str, int], text: str) -> None:
    with pytest.raises(TransportError, match=text):
        decode_frame(_with_header(**changes))


def test_a_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(TransportError, match="allowed"):
        decode_frame(_encode(FrameKind.DATA, 0, 0, 0, bytes(4 * 2**20 + 1)))


def test_an_empty_message_and_a_foreign_field_are_refused() -> None:
    for message in (b"", b"\x12\x00", b"\x0a\x01x", b"\x0a", b"\x0a\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(TransportError):
            decode_frame(message)
