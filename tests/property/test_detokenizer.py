"""Streamed text equals the decoded text, however tokens and pieces are cut."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.stop_filter import StopFilter
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tokenizers import byte_fallback


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    return byte_fallback()


def streamed(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int]) -> tuple[str, str]:
    """Text before the flush, and all of it."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [detokenizer.push(ids[start:end]) for start, end in itertools.pairwise(bounds)]
    before = "".join(pieces)
    return before, before + detokenizer.flush()


@given(text=st.text(max_size=120), cuts=st.lists(st.integers(0, 10**6), max_size=10))
def test_text_survives_any_cuts(byte_level: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(ids) == text
    _, whole = streamed(byte_level, ids, cuts)
    assert whole == text


@given(ids=st.lists(st.integers(0, 270), max_size=150), cuts=st.lists(st.integers(0, 10**6)))
def test_any_ids_equal_the_full_decode(
    byte_level: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    before, whole = streamed(byte_level, ids, cuts)
    assert whole == byte_level.decode(ids)
    assert whole.startswith(before)


@given(
    ids=st.lists(
        st.one_of(
            st.sampled_from([[256], [257], [258], [259]]),
            st.characters(exclude_categories=["Cs"]).map(lambda c: list(c.encode())),
        ),
        max_size=60,
    ).map(lambda groups: [i for group in groups for i in group]),
)
def test_byte_fallback_text(fallback: Tokenizer, ids: list[int]) -> None:
    _, whole = streamed(fallback, ids, [])
    assert whole == fallback.decode(ids)


@given(text=st.text(min_size=1, max_size=60))
def test_nothing_is_held_after_a_complete_character(byte_level: Tokenizer, text: str) -> None:
    if text.endswith("\ufffd"):
        return
    ids = byte_level.encode(text, add_special_tokens=False)
    before, _ = streamed(byte_level, ids, [])
    assert before == text


ALPHABET = st.text(alphabet="abc", max_size=12)


def filtered(
    text: str, stops: list[str], cuts: Sequence[int], *, include: bool = False
) -> tuple[str, str | None]:
    """What passes, and the match."""
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    stop_filter = StopFilter(stops, include_match=include)
    out = ""
    for start, end in itertools.pairwise(bounds):
        out += stop_filter.push(text[start:end])
        assert text.startswith(out)
    if stop_filter.matched is None:
        out += stop_filter.flush()
    return out, stop_filter.matched


@given(
    text=ALPHABET,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 100)),
    include=st.booleans(),
)
def test_stop_filter_does_not_see_the_cuts(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    whole = filtered(text, stops, [], include=include)
    assert filtered(text, stops, cuts, include=include) == whole
    assert filtered(text, stops, range(len(text)), include=include) == whole
    out, match = whole
    if match is None:
        assert out == text
        assert not any(stop in text for stop in stops)
    elif not include:
        assert text.startswith(out + match)


@given(text=ALPHABET, stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_only_a_possible_stop_is_withheld(text: str, stops: list[str]) -> None:
    stop_filter = StopFilter(stops)
    out = ""
    for index, char in enumerate(text, start=1):
        out += stop_filter.push(char)
        if stop_filter.matched is not None:
            return
        held = text[len(out) : index]
        assert all(
            not any(stop.startswith(text[start:index]) for stop in stops)
            for start in range(len(out))
            if len(text[start:index]) < max((len(s) for s in stops), default=0)
        )
        assert not held or any(stop.startswith(held) for stop in stops)
