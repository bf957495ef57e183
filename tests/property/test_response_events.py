"""Property: the events of a response tell the same answer wherever its text is cut, keep their
order, and end with exactly one last event, also when the request fails in the middle.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import reply_for
from gateway.job import Event, Finished, RequestReport, TextDelta
from gateway.schema.logprobs import no_entries
from gateway.schema.replies import new_envelope
from gateway.schema.response_events import ResponseWriter
from gateway.schema.response_object import ResponseObject
from gateway.schema.responses import ResponsesBody
from gateway.tools.hermes import HERMES
from gateway.tools.reading import CallReading
from shared.errors import HandoffError
from shared.types.sampling import FinishReason
from tests.support.gateway_jobs import job_of
from tests.support.response_events import check_events

BITS = [
    "Hello 🙂",
    " ",
    "\n",
    "<tool_",
    '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "f", "arguments": {"a": [1, ',
    '<tool_call>\n{"name": "g", ',
]
TEXTS = st.lists(st.sampled_from(BITS), max_size=5).map("".join)
CUTS = st.lists(st.integers(0, 10**6), max_size=8)
READINGS: dict[bool | None, CallReading | None] = {
    None: None,
    True: CallReading(form=HERMES, names=("f",), enforced=True),
    False: CallReading(form=HERMES, names=("f",), enforced=False),
}


def writer_of(reading: CallReading | None) -> ResponseWriter:
    response = ResponseObject(
        envelope=new_envelope("resp_", model="m", fingerprint="fp"),
        body=ResponsesBody(input="hi"),
        job=job_of("r"),
    )
    return ResponseWriter(response, reading=reading, logprobs=no_entries)


def pieces(text: str, cuts: Sequence[int]) -> Iterator[Event]:
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for a, b in itertools.pairwise(bounds):
        yield TextDelta(text=text[a:b], tokens=(), completion_tokens=b)


def ending(reason: FinishReason) -> Finished:
    return Finished(
        reason=reason,
        stop_match=None,
        prompt_tokens=3,
        completion_tokens=2,
        report=RequestReport(),
    )


def told(output: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What items say, without their names."""
    return [
        (
            item["type"],
            item["status"],
            item["content"][0]["text"]
            if item["type"] == "message"
            else item["name"] + item["arguments"],
        )
        for item in output
    ]


@given(
    text=TEXTS,
    cuts=CUTS,
    enforced=st.sampled_from([None, False, True]),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
@settings(deadline=None, max_examples=60)
def test_every_cut_tells_the_same_answer(
    text: str, cuts: list[int], enforced: bool | None, reason: FinishReason
) -> None:
    reading, end = READINGS[enforced], ending(reason)
    writer, at_once = writer_of(reading), writer_of(reading)
    events = [e for piece in [*pieces(text, cuts), end] for e in writer.of(piece)]
    check_events(events)
    whole = [e for piece in [*pieces(text, ()), end] for e in at_once.of(piece)]
    check_events(whole)
    assert told(writer.whole["output"]) == told(at_once.whole["output"])
    assert events[-1]["response"] == writer.whole
    status = "completed" if reason is FinishReason.STOP else "incomplete"
    assert writer.whole["status"] == status
    if reading is None:
        (message,) = writer.whole["output"]
        assert message["content"][0]["text"] == text


@given(
    text=TEXTS,
    cuts=CUTS,
    enforced=st.sampled_from([None, False, True]),
    told_before=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_a_failure_is_the_one_last_event(
    text: str, cuts: list[int], enforced: bool | None, told_before: int
) -> None:
    writer, reply = writer_of(READINGS[enforced]), reply_for(HandoffError("lost"))
    before = itertools.islice(pieces(text, cuts), told_before)
    events = [e for piece in before for e in writer.of(piece)]
    events += writer.failed(reply)
    check_events(events)
    assert events[-1]["type"] == "response.failed"
    assert list(writer.failed(reply)) == []


def test_nothing_follows_the_end() -> None:
    writer = writer_of(None)
    events = list(writer.of(ending(FinishReason.STOP)))
    events += writer.failed(reply_for(HandoffError("lost")))
    check_events(events)
    assert events[-1]["type"] == "response.completed"
