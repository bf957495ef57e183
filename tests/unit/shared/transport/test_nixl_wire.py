"""Notices of direct writes, and the fingerprint that is compared before anything else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import TransportError
from shared.transport.base import MAX_CHUNK_BYTES
from shared.transport.nixl_wire import (
    KEY_BYTES,
    MAX_DIRECT_BYTES,
    Notice,
    NoticeCheck,
    decode_notice,
    encode_notice,
    fingerprint,
)

notices = st.builds(
    Notice,
    key=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    slot=st.integers(0, 2**32 - 1),
    generation=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
    length=st.integers(1, MAX_CHUNK_BYTES),
    crc32=st.integers(0, 2**32 - 1),
    check=st.sampled_from(NoticeCheck),
)

ONE = Notice(key=b"k" * KEY_BYTES, slot=1, generation=2, offset=3, length=4, crc32=5)


@given(notice=notices)
def test_a_notice_comes_back_as_it_was(notice: Notice) -> None:
    assert decode_notice(encode_notice(notice)) == notice


@given(raw=st.binary(max_size=120))
def test_noise_is_refused(raw: bytes) -> None:
    with pytest.raises(TransportError, match="was refused"):
        decode_notice(raw)


@pytest.mark.parametrize(
    ("position", "why"), [(0, "magic number or version"), (4, "magic number or version")]
)
def test_another_magic_number_or_version_is_refused(position: int, why: str) -> None:
    raw = bytearray(encode_notice(ONE))
    raw[position] ^= 0x80
    with pytest.raises(TransportError, match=why):
        decode_notice(bytes(raw))


@pytest.mark.parametrize("length", [0, MAX_CHUNK_BYTES + 1])
def test_an_impossible_length_is_refused(length: int) -> None:
    notice = Notice(key=ONE.key, slot=1, generation=2, offset=3, length=length, crc32=5)
    with pytest.raises(TransportError, match=f"a chunk of {length} bytes"):
        decode_notice(encode_notice(notice))


def test_only_what_is_checked_later_may_be_long() -> None:
    late = replace(ONE, length=MAX_CHUNK_BYTES + 1, check=NoticeCheck.MANIFEST)
    assert decode_notice(encode_notice(late)) == late
    with pytest.raises(TransportError, match="a chunk of"):
        decode_notice(encode_notice(replace(late, length=MAX_DIRECT_BYTES + 1)))


def test_an_unknown_check_is_refused_and_none_is_crc32() -> None:
    """Versions before the field wrote zeros there."""
    raw = bytearray(encode_notice(ONE))
    assert raw[6:8] == b"\0\0"
    raw[6] = 9
    with pytest.raises(TransportError, match="check 9 is not known"):
        decode_notice(bytes(raw))


def test_the_fingerprint_changes_with_all_that_must_be_alike() -> None:
    base = fingerprint(library_version="1.5.1", memory="DRAM")
    assert base == fingerprint(library_version="1.5.1", memory="DRAM")
    assert base != fingerprint(library_version="1.5.2", memory="DRAM")
    assert base != fingerprint(library_version="1.5.1", memory="VRAM")
