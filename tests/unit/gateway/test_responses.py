"""Parts of /v1/responses by themselves: items as turns, and failures in the API's few codes."""

from typing import Any

import orjson
import pytest

from gateway.errors import reply_for
from gateway.schema.parse import parse_body
from gateway.schema.replies import new_envelope
from gateway.schema.response_input import turns_of
from gateway.schema.response_object import ResponseObject
from gateway.schema.responses import ResponsesBody
from shared.errors import (
    DeadlineError,
    HandoffError,
    InvalidRequestError,
    OverloadedError,
    RateLimitError,
    TandemError,
)
from tests.support.gateway_jobs import job_of


def body(**fields: Any) -> ResponsesBody:
    return parse_body(orjson.dumps({"input": "hi", **fields}), ResponsesBody)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": '{"a": 1}'}


def gave(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "x"}


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([said("a"), said("b")], ["a", "b"]),
        ([said("a"), called("f")], ["a+f"]),
        ([called("f"), called("g"), gave("g"), gave("f")], ["+f+g", "=g", "=f"]),
        ([called("f"), said("a"), called("g")], ["+f", "a+g"]),
        ([said("a"), called("f"), gave("f"), called("g"), gave("g")], ["a+f", "=f", "+g", "=g"]),
    ],
)
def test_calls_belong_to_the_turn_before_them(
    items: list[dict[str, Any]], turns: list[str]
) -> None:
    found = []
    for turn in turns_of(body(input=items).input):
        if turn["role"] == "tool":
            found.append(f"={turn['tool_call_id']}")
            continue
        calls = [call["function"] for call in turn.get("tool_calls", ())]
        assert all(call["arguments"] == {"a": 1} for call in calls)
        found.append(turn["content"] + "".join(f"+{call['name']}" for call in calls))
    assert found == turns


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RateLimitError("slow down"), "rate_limit_exceeded"),
        (OverloadedError("full"), "rate_limit_exceeded"),
        (InvalidRequestError("no", param="text.format"), "invalid_prompt"),
        (HandoffError("lost"), "server_error"),
        (DeadlineError("over"), "server_error"),
    ],
)
def test_failures_have_the_codes_of_the_api(error: TandemError, code: str) -> None:
    response = ResponseObject(
        envelope=new_envelope("resp_", model="m", fingerprint="fp"), body=body(), job=job_of("r")
    )
    told = response.failed([], reply_for(error))["error"]
    assert (told["code"], told["reason"]) == (code, error.error_code)
    assert (told["message"], told["param"]) == (error.message, error.param)
