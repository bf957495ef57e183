"""What a caller asks for, and the request that it becomes."""

import json
from typing import Any, cast

import pytest
from google.protobuf.json_format import MessageToDict

from gateway.sdk import InvalidRequestError, Message, Prompt, Tool, ToolCall
from gateway.sdk.params import GenerateParams, request_of
from shared.types.token_ids import ids_from_bytes

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def written(prompt: Prompt = "hi", **params: Any) -> dict[str, Any]:
    request = request_of(prompt, cast("GenerateParams", params))
    return MessageToDict(request, preserving_proto_field_name=True)


def test_the_three_forms_of_a_prompt() -> None:
    assert written("hi") == {"text": "hi"}
    assert list(ids_from_bytes(request_of([1, 2, 3], {}).token_ids.packed)) == [1, 2, 3]
    call = ToolCall(id="c1", name="weather", arguments='{"city": "Bern"}')
    turns = (
        Message("user", "hi", name="ann"),
        Message("assistant", tool_calls=(call,)),
        Message("tool", "sunny", tool_call_id="c1"),
    )
    assert written(turns)["conversation"] == {
        "messages": [
            {"role": "user", "content": "hi", "name": "ann"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "c1",
                        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
                    }
                ],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        ]
    }


def test_what_is_left_out_stays_unset() -> None:
    request = request_of("hi", {})
    assert [field.name for field, _ in request.ListFields()] == ["text"]


def test_one_sampling_field_leaves_the_others_at_their_defaults() -> None:
    sampling = request_of("hi", {"top_p": 0.5}).sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1.0, 0.5, 1.0)
    assert not sampling.HasField("logprobs")
    greedy = request_of("hi", {"temperature": 0.0, "logprobs": 0, "logit_bias": {7: -1.5}}).sampling
    assert (greedy.temperature, greedy.logprobs) == (0.0, 0)
    assert greedy.HasField("logprobs")
    assert [(entry.token_id, entry.bias) for entry in greedy.logit_bias] == [(7, -1.5)]


def test_stop_conditions() -> None:
    request = request_of(
        "hi",
        {
            "max_tokens": 9,
            "min_tokens": 2,
            "stop": "end",
            "stop_token_ids": [5],
            "ignore_eos": True,
        },
    )
    stop = request.stop
    assert (stop.max_tokens, stop.min_tokens, list(stop.strings)) == (9, 2, ["end"])
    assert list(stop.token_ids) == [5]
    assert request.ignore_eos
    assert list(request_of("hi", {"stop": ["a", "b"]}).stop.strings) == ["a", "b"]


def test_options_and_parts() -> None:
    found = written(
        mode="both",
        keep_rate=0.25,
        min_keep=8,
        protect=[(0, 4), "system", "question"],
        window=16,
        page_policy="delta",
        page_budget=12,
        recency_pages=2,
        page_layout="segment",
        page_heads="kv_head",
        page_refresh=4,
        page_mass=0.5,
        trace=True,
        replay=True,
        n=3,
        model="m",
    )
    assert found["options"] == {
        "mode": "MODE_BOTH",
        "keep_rate": 0.25,
        "min_keep": 8,
        "protect": [{"end": 4}],
        "observation_window": 16,
        "page_policy": "delta",
        "page_budget": 12,
        "recency_pages": 2,
        "page_layout": "segment",
        "page_heads": "kv_head",
        "page_refresh": 4,
        "page_mass": 0.5,
        "trace": True,
        "replay": True,
    }
    assert found["protect_parts"] == ["PROMPT_PART_SYSTEM", "PROMPT_PART_QUESTION"]
    assert (found["num_answers"], found["model"]) == (3, "m")
    other = written(window="question", mass=0.9, min_rate=0.1, max_rate=0.5)
    assert other["question_window"]
    assert other["options"] == {"mass": 0.9, "min_rate": 0.1, "max_rate": 0.5}


def test_formats_and_tools() -> None:
    assert written(response_format="json_object")["response_format"] == {"json_object": True}
    form = request_of("hi", {"response_format": SCHEMA}).response_format
    assert json.loads(form.json_schema) == SCHEMA
    assert not request_of("hi", {"response_format": "text"}).HasField("response_format")
    request = request_of(
        [Message("user", "hi")],
        {
            "tools": [
                Tool(name="weather", description="of a city", parameters=SCHEMA, strict=True)
            ],
            "tool_choice": "required",
            "allowed_tools": ["weather"],
            "parallel_tool_calls": False,
        },
    )
    (tool,) = request.tools
    assert (tool.function.name, tool.function.strict) == ("weather", True)
    assert json.loads(tool.function.parameters) == SCHEMA
    assert list(request.tool_choice.allowed) == ["weather"]
    assert request.HasField("parallel_tool_calls")
    assert request_of([Message("user", "hi")], {"tools": [Tool(name="a")]}).tools[
        0
    ].function == type(tool.function)(name="a")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"mode": "fast"}, "mode"),
        ({"protect": ["middle"]}, "protect"),
        ({"window": "all"}, "window"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"response_format": "yaml"}, "response_format"),
        ({"max_tokens": -1}, None),
        ({"stop": "\ud800"}, None),
        ({"seed": 2**64}, None),
    ],
)
def test_what_cannot_be_written_is_refused(params: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_of("hi", cast("GenerateParams", params))
    assert caught.value.param == param


def test_an_empty_prompt_a_mixed_one_and_an_unknown_argument() -> None:
    empties: tuple[Prompt, ...] = ("", [], ())
    for empty in empties:
        with pytest.raises(InvalidRequestError) as caught:
            request_of(empty, {})
        assert caught.value.error_code == "missing_required_parameter"
    with pytest.raises(TypeError):
        request_of(cast("Prompt", [1, Message("user", "hi")]), {})
    with pytest.raises(TypeError, match="'temprature'"):
        request_of("hi", cast("GenerateParams", {"temprature": 1.0}))
