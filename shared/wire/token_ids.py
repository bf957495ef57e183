"""Token ids of a prompt on the wire: packed, or one by one."""

from array import array
from collections.abc import Sequence

import numpy as np

from shared.errors import InvalidRequestError
from shared.types.token_ids import compact_ids, ids_from_bytes


def ids_from_pb(ids: Sequence[int], packed: bytes, *, param: str) -> "array[int]":
    """The ids of a message that has a field of either form.

    Args:
        ids: one by one, or empty.
        packed: little-endian uint32, or empty.
        param: names them in errors.

    Raises:
        InvalidRequestError: both were sent, or the bytes are no whole number of ids.
    """
    if packed and ids:
        raise InvalidRequestError(
            f"{param} was sent both packed and one by one; leave one of the two out", param=param
        )
    if not packed:
        return compact_ids(ids[:])  # a slice leaves the message at once, not id by id
    try:
        return ids_from_bytes(packed)
    except ValueError as error:
        raise InvalidRequestError(
            f"{param} has {len(packed)} packed bytes, which are no whole number of ids; pack each "
            "id as a little-endian uint32",
            param=param,
        ) from error


def smallest_id(ids: "array[int]") -> int:
    """The smallest of at least one id."""
    return int(np.asarray(ids).min())


def largest_id(ids: Sequence[int]) -> int:
    """The largest of at least one id that is not negative; quick where they are compact."""
    if isinstance(ids, array):
        return int(np.asarray(ids).max())
    return max(ids)
