"""The fast checksum is the one that zlib computes, so that peers of any version agree."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from shared.kv.checksum import crc32


@given(data=st.binary(max_size=5_000))
def test_it_equals_zlibs(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data)) == zlib.crc32(data)


def test_large_blocks_equal_too() -> None:
    data = bytes(range(256)) * 20_000
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data)[1:-1]) == zlib.crc32(data[1:-1])
