"""Reading calls out of text: whatever the cuts between pieces, and nothing is ever lost."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.base import ToolFormat
from gateway.tools.events import ArgumentsPiece, CallEvent, CallStarted, ContentPiece, joined
from gateway.tools.parser import ToolCallParser
from gateway.tools.registry import FORMATS

NAMES = ("find", "find_all", "x")

PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<tool_",
        "[TOOL",
        "\n",
        " ",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        '"',
        "\\",
        "é🦊",
        "word",
        '{"name": "find"',
        ', "arguments": {}}',
        '{"name": "x", "arguments": {"a": "}\\"{"}}',
        '{"name": "find_all", "parameters": {"b": [1]}}',
        '{"name": "other", "arguments": {}}',
        '{"name": 3}',
        '{"name": ["find"], "arguments": {}}',
        '{"name": "find", "arguments": {"a": "\\ud800"}, "parameters": {"a": "\\ud800"}}',
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(max_size=4), VALUES)),
    min_size=1,
    max_size=3,
)


def read(
    form: ToolFormat, pieces: list[str], *, enforced: bool
) -> tuple[list[tuple[str, Any]], bool]:
    """What a parser says of a text that comes in pieces; ids left out."""
    parser = ToolCallParser(form, names=NAMES, enforced=enforced)
    events: list[CallEvent] = []
    for piece in pieces:
        events += parser.push(piece)
    events += parser.finish()
    return [_plain(event) for event in joined(events)], parser.complete


def _plain(event: CallEvent) -> tuple[str, Any]:
    match event:
        case ContentPiece(text):
            return "content", text
        case CallStarted(index, _, name):
            return "call", (index, name)
        case ArgumentsPiece(index, text):
            return "arguments", (index, text)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@pytest.mark.parametrize("enforced", [False, True])
@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_cuts_do_not_matter(form: ToolFormat, enforced: bool, text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    whole = read(form, [text], enforced=enforced)
    assert read(form, pieces, enforced=enforced) == whole
    assert read(form, list(text), enforced=enforced) == whole
    json.dumps(whole, ensure_ascii=False).encode()


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@given(text=TEXTS)
def test_without_a_call_all_is_content(form: ToolFormat, text: str) -> None:
    events, complete = read(form, [text], enforced=False)
    if not any(kind == "call" for kind, _ in events):
        assert "".join(value for _, value in events) == text
        assert not complete


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@pytest.mark.parametrize("enforced", [False, True])
@given(calls=CALLS)
def test_what_the_grammar_writes_is_read_back(
    form: ToolFormat, enforced: bool, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    if not form.several:
        calls = calls[:1]
    events, complete = read(form, [written(form, calls)], enforced=enforced)
    assert complete
    assert [value[1] for kind, value in events if kind == "call"] == [name for name, _ in calls]
    found = [json.loads(value[1]) for kind, value in events if kind == "arguments"]
    assert found == [arguments for _, arguments in calls]
    assert not any(kind == "content" for kind, _ in events)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@given(calls=CALLS, kept=st.integers(0, 200))
def test_a_call_cut_short_is_never_called_complete(
    form: ToolFormat, calls: list[tuple[str, dict[str, Any]]], kept: int
) -> None:
    """What `max_tokens` leaves of the first call."""
    one = written(form, calls[:1])
    inside = len(one) - len(form.after) - len(form.end) - 1
    for enforced in (False, True):
        events, complete = read(form, [one[: min(kept, inside)]], enforced=enforced)
        assert not complete
        assert enforced or all(kind == "content" for kind, _ in events)


def written(form: ToolFormat, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The calls as the grammar makes a model write them."""
    objects = [form.head(name) + json.dumps(arguments) + "}" for name, arguments in calls]
    opener = form.openers[0] if form.marked else ""
    groups = [form.separator.join(objects)] if form.separator else objects
    return "\n".join(f"{opener}{form.before}{g}{form.after}{form.end}" for g in groups)
