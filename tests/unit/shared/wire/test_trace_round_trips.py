"""Traces survive the wire, and their JSON is strict and bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.types.handoff_trace import HandoffTrace, KvBlock, KvPush
from shared.types.options import RequestOptions
from shared.types.trace import (
    LayoutTrace,
    PageStep,
    PageTrace,
    PromptTrace,
    Ranges,
    RequestTrace,
    WatchedLayer,
    WaterfallBar,
)
from shared.wire.options import options_from_pb, options_to_pb
from shared.wire.trace import (
    page_trace_from_pb,
    page_trace_to_pb,
    prompt_trace_from_pb,
    prompt_trace_to_pb,
    request_trace_from_pb,
    request_trace_to_pb,
)

COUNT = st.integers(0, 2**31)
SHARES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=8).map(tuple)


@st.composite
def ranges(draw) -> Ranges:
    bounds = sorted(draw(st.sets(st.integers(0, 1000), max_size=12)))
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


SECONDS = st.floats(0, 1000)
HANDOFFS = st.builds(
    HandoffTrace,
    computed=st.lists(
        st.builds(KvBlock, layer=COUNT, first_slot=COUNT, slots=COUNT, seconds=SECONDS), max_size=3
    ).map(tuple),
    pushed=st.lists(
        st.builds(KvPush, nbytes=st.integers(0, 2**60), start_s=SECONDS, seconds=SECONDS),
        max_size=3,
    ).map(tuple),
    left_out=COUNT,
    computed_s=SECONDS,
    sealed_s=SECONDS,
    adopted_s=SECONDS,
)
PROMPTS = st.builds(
    PromptTrace,
    prompt_tokens=COUNT,
    column_tokens=COUNT,
    score=st.none() | SHARES.filter(bool),
    layouts=st.lists(
        st.builds(
            LayoutTrace,
            layers=st.lists(st.integers(0, 99), max_size=4).map(tuple),
            kept_tokens=COUNT,
            share=SHARES,
            spans=st.none() | ranges().filter(bool),
        ),
        max_size=3,
    ).map(tuple),
    handoff=st.none() | HANDOFFS,
)
PAGES = st.builds(
    PageTrace,
    policy=st.sampled_from(["delta", "quest"]),
    column_slots=COUNT,
    columns=COUNT,
    total_steps=COUNT,
    stride=COUNT,
    layers=st.lists(
        st.builds(WatchedLayer, layer=COUNT, role=st.just("sparse"), prompt_slots=COUNT),
        max_size=2,
    ).map(tuple),
    steps=st.lists(
        st.builds(
            PageStep,
            step=COUNT,
            position=COUNT,
            attended=COUNT,
            dense=COUNT,
            refreshed=st.lists(st.integers(0, 99), max_size=3).map(tuple),
            read=st.lists(ranges(), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)


@given(PROMPTS)
def test_prompt_traces_come_back(trace: PromptTrace) -> None:
    assert prompt_trace_from_pb(prompt_trace_to_pb(trace)) == trace
    json.dumps(trace.to_json(), allow_nan=False)


@given(PAGES)
def test_page_traces_come_back(trace: PageTrace) -> None:
    assert page_trace_from_pb(page_trace_to_pb(trace)) == trace
    json.dumps(trace.to_json(), allow_nan=False)


@given(PROMPTS, PAGES)
def test_the_public_message_holds_the_same(prompt: PromptTrace, pages: PageTrace) -> None:
    bar = WaterfallBar(hop="prefill", phase="prefill", start_s=0.5, seconds=0.25)
    trace = RequestTrace(waterfall=(bar,), ttft_s=0.5, total_s=1.0, prompt=prompt, pages=pages)
    message = request_trace_to_pb(trace)
    assert request_trace_from_pb(message, ttft_s=0.5) == trace
    unset = request_trace_from_pb(request_trace_to_pb(RequestTrace()), ttft_s=0.0)
    assert unset == RequestTrace()
    assert (message.waterfall[0].hop, message.waterfall[0].start_seconds) == ("prefill", 0.5)
    assert message.total_seconds == 1.0


@pytest.mark.parametrize("asked", [True, False])
def test_the_option_travels(asked: bool) -> None:
    options = RequestOptions(trace=asked)
    assert options_from_pb(options_to_pb(options)) == options
    assert not options.changes_pruning
