"""Packed ids are the ids: in memory, in messages, and from a body of JSON."""

import hashlib
import struct
from array import array

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.schema.completions import CompletionBody
from gateway.schema.parse import parse_body
from protos.tandem.v1 import prefill_pb2
from shared.errors import InvalidRequestError
from shared.types.token_ids import (
    MAX_TOKEN_ID,
    compact_ids,
    hash_ids,
    ids_from_bytes,
    ids_to_bytes,
)
from shared.wire.token_ids import ids_from_pb, largest_id


def slow_hash(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


IDS = st.lists(st.integers(0, MAX_TOKEN_ID), min_size=1, max_size=40)


@given(IDS)
def test_both_forms_of_a_message_are_the_same_ids(ids: list[int]) -> None:
    packed = ids_to_bytes(ids)
    assert packed == struct.pack(f"<{len(ids)}I", *ids)
    assert list(ids_from_bytes(packed)) == ids
    message = prefill_pb2.PrefillRequest(token_ids=ids)
    for found in (
        ids_from_pb(message.token_ids, b"", param="prompt"),
        ids_from_pb((), packed, param="prompt"),
    ):
        assert list(found) == ids
        assert largest_id(found) == max(ids)
        assert hash_ids(found) == hash_ids(tuple(ids)) == slow_hash(ids)


@given(IDS)
def test_a_body_of_ids_is_compact_and_the_same(ids: list[int]) -> None:
    (found,) = parse_body(orjson.dumps({"prompt": ids}), CompletionBody).prompt
    assert isinstance(found, array), "later steps look at all ids at once"
    assert list(found) == ids
    assert compact_ids(found) is found, "nothing copies them again"


JSON_VALUES = st.one_of(
    st.integers(-2, 2**63),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.text(max_size=2),
)


@given(st.lists(JSON_VALUES, min_size=1, max_size=6))
def test_a_body_is_refused_unless_every_id_is_one(values: list[object]) -> None:
    fine = all(type(value) is int and value >= 0 for value in values)
    texts = all(isinstance(value, str) and value for value in values)
    raw = orjson.dumps({"prompt": values})
    if fine or texts:
        (first, *_) = parse_body(raw, CompletionBody).prompt
        assert list(first) == values if fine else first == values[0]
        return
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(raw, CompletionBody)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("ids", [[-1], [MAX_TOKEN_ID + 1]])
def test_what_does_not_fit_is_an_error(ids: list[int]) -> None:
    with pytest.raises(OverflowError):
        compact_ids(ids)
