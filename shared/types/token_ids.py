"""Token ids of a prompt in four bytes each.

As Python numbers tens of thousands of them take a megabyte, and every walk through them is felt in
the time to first token; as an array they are copied, sent and checked at once.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

MAX_TOKEN_ID = 2**32 - 1
"""Largest id that fits."""

_TYPECODE = "I"
_BYTES = 4
assert array(_TYPECODE).itemsize == _BYTES, "a C int has four bytes wherever Python runs"


def compact_ids(ids: Sequence[int]) -> "array[int]":
    """Ids as an array; one that is an array already is returned as it is.

    Raises:
        OverflowError: one is negative or above `MAX_TOKEN_ID`.
        TypeError: one is no integer.
    """
    if isinstance(ids, array) and ids.typecode == _TYPECODE:
        return ids
    return array(_TYPECODE, ids)


def ids_to_bytes(ids: Sequence[int]) -> bytes:
    """Ids as little-endian uint32, the form of messages.

    Raises:
        OverflowError: one is negative or above `MAX_TOKEN_ID`.
        TypeError: one is no integer.
    """
    return _little_endian(compact_ids(ids)).tobytes()


def hash_ids(ids: Sequence[int]) -> str:
    """SHA-256 of `ids_to_bytes`, hex: what the two ends of a handoff know a prompt by."""
    return hashlib.sha256(ids_to_bytes(ids)).hexdigest()


def ids_from_bytes(data: bytes) -> "array[int]":
    """The ids of `ids_to_bytes`.

    Raises:
        ValueError: the bytes are no whole number of ids.
    """
    ids = array(_TYPECODE)
    ids.frombytes(data)
    return _little_endian(ids)


def _little_endian(ids: "array[int]") -> "array[int]":
    """The same, or on a big-endian machine a copy with its bytes turned round."""
    if sys.byteorder == "little":
        return ids
    turned = ids[:]
    turned.byteswap()
    return turned
