"""Headers of W3C Trace Context: what is taken up and what the standard says to ignore."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.telemetry.trace_context import MAX_STATE_CHARS, fresh_context, parse_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_the_example_of_the_standard():
    context = parse_context(f"00-{TRACE}-{SPAN}-01", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert context is not None
    assert (context.trace_id, context.span_id, context.sampled) == (TRACE, SPAN, True)
    assert context.state == "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
    assert context.header == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
def test_only_the_first_flag_says_sampled(flags: str):
    context = parse_context(f"00-{TRACE}-{SPAN}-{flags}")
    assert context is not None
    assert not context.sampled


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "garbage",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_malformed_headers_are_ignored(header: str | None):
    assert parse_context(header) is None


def test_later_versions_may_add_fields():
    context = parse_context(f"01-{TRACE}-{SPAN}-01-what-comes")
    assert context is not None
    assert context.header == f"00-{TRACE}-{SPAN}-01"


def test_long_vendor_states_are_dropped():
    context = parse_context(f"00-{TRACE}-{SPAN}-01", "a=" + "x" * MAX_STATE_CHARS)
    assert context is not None
    assert context.state == ""


def test_fresh_traces_differ_and_can_be_read():
    first, second = fresh_context(), fresh_context()
    assert first.trace_id != second.trace_id
    assert parse_context(first.header) == first


@given(st.text(max_size=80))
def test_no_text_raises(text: str):
    parse_context(text, text)
