"""Schemas and tools over real workers: a random model's answers are right all the same."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import jsonschema_rs
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from gateway.sdk import AsyncTandemClient, FinishReason, Message, Tool
from protos.tandem.v1 import common_pb2, inference_pb2
from shared.rpc.status import error_from_rpc
from tests.support.full_stack import Stack, running_stack
from tests.support.tool_templates import TEMPLATES, with_template

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Any = [{"role": "user", "content": "Where is the fox?"}]

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["fox", "dog", "ünïcödé"]},
            "count": {"type": "integer", "minimum": -20, "maximum": 400},
            "sure": {"type": "boolean"},
            "note": {"type": ["string", "null"], "maxLength": 6},
        },
        "required": ["kind", "count", "sure", "note"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {"$ref": "#/$defs/point"},
            }
        },
        "required": ["items"],
        "additionalProperties": False,
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"enum": [0, 1.5, -3]}, "y": {"const": "up"}},
                "required": ["x", "y"],
                "additionalProperties": False,
            }
        },
    },
    "choice": {
        "anyOf": [
            {"type": "string", "pattern": "^[a-f]{2,4}$"},
            {"type": "integer", "minimum": 1, "maximum": 9},
            {"type": "array", "items": {"type": "null"}, "maxItems": 2},
        ]
    },
    "time": {"type": "string", "format": "date"},
    "recursive": {
        "type": "object",
        "properties": {"name": {"enum": ["leaf"]}, "below": {"$ref": "#/$defs/below"}},
        "required": ["name", "below"],
        "additionalProperties": False,
        "$defs": {"below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
    },
}

FIND: Any = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds animals.",
        "parameters": SCHEMAS["nested"],
    },
}
COUNT: Any = {
    "type": "function",
    "function": {
        "name": "count_all",
        "parameters": {
            "type": "object",
            "properties": {"fast": {"type": "boolean"}},
            "required": ["fast"],
            "additionalProperties": False,
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(
    tiny_model_dir: Path, profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    folder = with_template(
        tiny_model_dir, tmp_path_factory.mktemp("tools") / "tiny", template=TEMPLATES["hermes"]
    )
    async with running_stack(folder, profile) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0) as opened:
        yield opened


def of_schema(name: str) -> Any:
    """`response_format` of a named schema."""
    definition = {"name": name, "strict": True, "schema": SCHEMAS[name]}
    return {"type": "json_schema", "json_schema": definition}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
async def test_every_answer_validates(
    client: openai.AsyncOpenAI, name: str, temperature: float
) -> None:
    """Three answers to one prompt, each with a first token of its own from prefill."""
    answer = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        n=3,
        temperature=temperature,
        seed=11,
        max_tokens=220,
        response_format=of_schema(name),
    )
    validator = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    for choice in answer.choices:
        if choice.finish_reason == "length" and name == "recursive":
            continue  # a random model may go down for ever
        assert choice.finish_reason == "stop"
        content = choice.message.content
        assert content is not None
        assert validator.is_valid(json.loads(content)), content


async def test_an_object_of_any_kind_begins_like_one(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=60,
        seed=3,
        response_format={"type": "json_object"},
    )
    (choice,) = answer.choices
    assert choice.message.content is not None
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


async def test_max_tokens_cuts_and_says_so(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=4, seed=3, response_format=of_schema("flat")
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content is not None
    assert '{"kind": "'.startswith(choice.message.content[:9])


class Point(BaseModel):
    """A part of what the SDK parses."""

    x: Literal[1, 2, 3]
    tags: list[Literal["red", "blue"]] = Field(max_length=2)


class Answer(BaseModel):
    """What the SDK parses."""

    points: list[Point] = Field(min_length=1, max_length=2)
    found: bool


async def test_the_sdk_parses_pydantic_models(client: openai.AsyncOpenAI) -> None:
    parsed = await client.chat.completions.parse(
        model="tiny", messages=MESSAGES, max_tokens=300, seed=5, response_format=Answer
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)


async def test_the_stream_helper_parses_pydantic_models(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, max_tokens=300, seed=6, response_format=Answer
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Answer)


async def test_rows_with_and_without_a_grammar_share_a_batch(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    """What a free row answers does not depend on its constrained neighbours."""
    import asyncio

    async def free() -> str:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
        response = await stack.http.post("/v1/chat/completions", json=body)
        return str(response.json()["choices"][0]["message"]["content"])

    async def bound() -> str | None:
        answer = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=400,
            temperature=0,
            response_format=of_schema("flat"),
        )
        return answer.choices[0].message.content

    alone = await free()
    together = await asyncio.gather(free(), bound(), free(), bound(), bound())
    assert together[0] == together[2] == alone
    assert together[1] == together[3] == together[4]
    assert jsonschema_rs.is_valid(SCHEMAS["flat"], json.loads(together[1] or ""))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
async def test_enforced_calls_validate_streamed_and_whole(
    client: openai.AsyncOpenAI, choice: Any
) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": [FIND, COUNT],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "seed": 8,
    }
    whole = (await client.chat.completions.create(**asked)).choices[0]
    async with client.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        streamed = (await stream.get_final_completion()).choices[0]
    for found in (whole, streamed):
        assert found.finish_reason == "tool_calls"
        assert not found.message.content
        assert found.message.tool_calls is not None
        (call,) = found.message.tool_calls
        assert call.type == "function"
        assert call.id.startswith("call_")
        known = {t["function"]["name"]: t["function"]["parameters"] for t in (FIND, COUNT)}
        arguments = json.loads(call.function.arguments)
        assert jsonschema_rs.is_valid(known[call.function.name], arguments)
        if choice != "required":
            assert call.function.name == "find"
    assert whole.message.tool_calls is not None
    assert streamed.message.tool_calls is not None
    first, second = whole.message.tool_calls[0], streamed.message.tool_calls[0]
    assert first.type == second.type == "function"
    assert first.function.arguments == second.function.arguments
    assert first.function.name == second.function.name


class CountAll(BaseModel):
    """Counts."""

    fast: bool


async def test_the_sdk_parses_tool_arguments(client: openai.AsyncOpenAI) -> None:
    parsed = await client.chat.completions.parse(
        model="tiny",
        messages=MESSAGES,
        max_tokens=300,
        tools=[openai.pydantic_function_tool(CountAll)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, CountAll)


async def test_text_stays_text_when_the_model_is_free(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[COUNT], max_tokens=12, temperature=0
    )
    (choice,) = answer.choices
    assert choice.finish_reason in {"stop", "length"}
    assert choice.message.content
    assert choice.message.tool_calls is None


async def test_a_conversation_with_calls_goes_on(client: openai.AsyncOpenAI) -> None:
    history: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "count_all", "arguments": '{"fast": true}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]
    answer = await client.chat.completions.create(
        model="tiny", messages=history, tools=[COUNT], max_tokens=5
    )
    assert answer.choices[0].finish_reason in {"stop", "length"}


async def test_a_schema_over_grpc(stack: Stack) -> None:
    text, finished = await stack.generate(grpc_request(json_schema=json.dumps(SCHEMAS["flat"])))
    assert finished.reason == common_pb2.FINISH_REASON_STOP
    assert jsonschema_rs.is_valid(SCHEMAS["flat"], json.loads(text))


async def test_an_object_over_grpc(stack: Stack) -> None:
    text, _ = await stack.generate(grpc_request(json_object=True))
    assert text.startswith("{")


async def test_enforced_calls_over_grpc(stack: Stack) -> None:
    async with AsyncTandemClient(stack.gateway.grpc_address) as opened:
        found = await opened.generate(
            [Message("user", "Where is the fox?")],
            tools=[Tool(name="find", parameters=SCHEMAS["nested"]), Tool(name="count_all")],
            tool_choice="required",
            allowed_tools=["find"],
            parallel_tool_calls=False,
            n=2,
            seed=5,
            max_tokens=160,
        )
    for answer in found.answers:
        assert answer.reason is FinishReason.TOOL_CALLS
        (call,) = answer.tool_calls
        assert (call.name, answer.text) == ("find", "")
        assert jsonschema_rs.is_valid(SCHEMAS["nested"], call.parsed())


@pytest.mark.parametrize("schema", ['{"type": "object", "not": {}}', "[1]", "nonsense"])
async def test_a_bad_schema_over_grpc_is_refused(stack: Stack, schema: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.generate(grpc_request(json_schema=schema))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(caught.value).error_code == "invalid_json_schema"


def grpc_request(**form: Any) -> inference_pb2.GenerateRequest:
    """A request with a response format."""
    return inference_pb2.GenerateRequest(
        text="Where is the fox?",
        sampling=common_pb2.SamplingParams(temperature=1, top_p=1, repetition_penalty=1, seed=4),
        stop=common_pb2.StopConditions(max_tokens=300),
        response_format=inference_pb2.ResponseFormat(**form),
    )
