"""Reads the event stream of a response, and says what every such stream keeps to."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import jsonschema_rs
from openai.types import responses
from pydantic import BaseModel

from gateway.openapi.document import build_document
from tests.support.gateway_rig import strict_json

TERMINAL = ("response.completed", "response.incomplete", "response.failed")

EVENTS: dict[str, type[BaseModel]] = {
    "response.created": responses.ResponseCreatedEvent,
    "response.in_progress": responses.ResponseInProgressEvent,
    "response.output_item.added": responses.ResponseOutputItemAddedEvent,
    "response.output_item.done": responses.ResponseOutputItemDoneEvent,
    "response.content_part.added": responses.ResponseContentPartAddedEvent,
    "response.content_part.done": responses.ResponseContentPartDoneEvent,
    "response.output_text.delta": responses.ResponseTextDeltaEvent,
    "response.output_text.done": responses.ResponseTextDoneEvent,
    "response.function_call_arguments.delta": responses.ResponseFunctionCallArgumentsDeltaEvent,
    "response.function_call_arguments.done": responses.ResponseFunctionCallArgumentsDoneEvent,
    "response.completed": responses.ResponseCompletedEvent,
    "response.incomplete": responses.ResponseIncompleteEvent,
    "response.failed": responses.ResponseFailedEvent,
}


def named_events(raw: bytes) -> list[dict[str, Any]]:
    """Events of a finished stream, each checked by itself and all of them together."""
    text = raw.decode("utf-8")
    assert text.endswith("\n\n"), "the last event lacks its blank line"
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            assert "\n" not in block
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        event = strict_json(data.removeprefix("data: "))
        assert name.removeprefix("event: ") == event["type"]
        events.append(event)
    check_events(events)
    return events


def check_events(events: Sequence[dict[str, Any]]) -> None:
    """The types of the official client and our own document, the numbers, the order, the end."""
    for event in events:
        EVENTS[event["type"]].model_validate_json(strict_text(event), strict=True)
        document_of("ResponseEvent").validate(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert [kind in TERMINAL for kind in types] == [False] * (len(types) - 1) + [True]
    failed = types[-1] == "response.failed"
    items = list(_items(events[2:-1], cut_off=failed))
    assert [item["status"] for item in items[:-1]] == ["completed"] * (len(items) - 1)
    assert events[-1]["response"]["output"] == items
    assert len({item["id"] for item in items}) == len(items)
    lives = [event["response"] for event in (*events[:2], events[-1])]
    assert all(a["id"] == b["id"] for a, b in pairwise(lives))


def _items(events: Sequence[dict[str, Any]], *, cut_off: bool) -> Iterator[dict[str, Any]]:
    """What the events say was written, read as clients read it."""
    index, waiting = 0, list(events)
    while waiting:
        added = waiting.pop(0)
        assert added["type"] == "response.output_item.added"
        assert added["output_index"] == index
        own = [e for e in waiting if e.get("output_index") == index]
        del waiting[: len(own)]
        item = added["item"]
        ended = bool(own) and own[-1]["type"] == "response.output_item.done"
        assert ended or (cut_off and not waiting)
        written = _message(item, own) if item["type"] == "message" else _call(item, own)
        if ended:
            assert own[-1]["item"] == {**written, "status": own[-1]["item"]["status"]}
            yield own[-1]["item"]
        else:
            yield {**written, "status": "incomplete"}
        index += 1


def _message(item: dict[str, Any], events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    assert item["content"] == []
    assert events[0]["type"] == "response.content_part.added"
    assert all(e["item_id"] == item["id"] and e["content_index"] == 0 for e in events[:-1])
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    part = {
        **events[0]["part"],
        "text": "".join(e["delta"] for e in deltas),
        "logprobs": [entry for e in deltas for entry in e["logprobs"]],
    }
    if events[-1]["type"] == "response.output_item.done":
        text, done = events[-3:-1]
        assert text["type"] == "response.output_text.done"
        assert (text["text"], text["logprobs"]) == (part["text"], part["logprobs"])
        assert done["type"] == "response.content_part.done"
        assert done["part"] == part
        assert len(events) == len(deltas) + 4
    return {**item, "content": [part]}


def _call(item: dict[str, Any], events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    assert item["arguments"] == ""
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    arguments = "".join(e["delta"] for e in deltas)
    assert all(e["item_id"] == item["id"] for e in deltas)
    if events and events[-1]["type"] == "response.output_item.done":
        assert events[-2]["type"] == "response.function_call_arguments.done"
        assert events[-2]["arguments"] == arguments
        assert len(events) == len(deltas) + 2
    return {**item, "arguments": arguments}


def strict_text(value: dict[str, Any]) -> str:
    """JSON for a model's strict validation."""
    return json.dumps(value, allow_nan=False)


@cache
def document_of(schema: str) -> Any:
    """A validator of one schema of the OpenAPI document."""
    return jsonschema_rs.validator_for(
        {**build_document(), "$ref": f"#/components/schemas/{schema}"}
    )


def whole_response(raw: bytes) -> dict[str, Any]:
    """A response that was not streamed, checked by the client's types and by the document."""
    responses.Response.model_validate_json(raw, strict=True)
    response: dict[str, Any] = strict_json(raw.decode("utf-8"))
    document_of("ResponseReply").validate(response)
    return response
