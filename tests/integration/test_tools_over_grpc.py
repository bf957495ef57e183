"""Tools over gRPC in front of simulated workers: what REST clients get, in messages."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.rpc.status import error_from_rpc
from tests.support.gateway_rig import Rig, running_rig
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

MARKERS = ("[TOOL_CALLS]", "<|python_tag|>")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
CITY = {"city": "Zürich {\"]}"}  # fmt: skip
CALL = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(CITY)}}}\n</tool_call>',
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {json.dumps(CITY)}}}]',
    "llama3_json": f'{{"name": "weather", "parameters": {json.dumps(CITY)}}}',
}


def function(name: str, parameters: Any = None, **fields: Any) -> inference_pb2.Tool:
    text = "" if parameters is None else json.dumps(parameters)
    return inference_pb2.Tool(
        function=inference_pb2.FunctionTool(name=name, parameters=text, **fields)
    )


TOOLS = (function("weather", SCHEMA, description="Weather of a city"), function("clock"))


def ask(
    *,
    tools: Sequence[inference_pb2.Tool] = TOOLS,
    turns: Sequence[inference_pb2.ChatMessage] = (),
    **fields: Any,
) -> inference_pb2.GenerateRequest:
    messages = turns or (inference_pb2.ChatMessage(role="user", content="hi"),)
    return inference_pb2.GenerateRequest(
        conversation=inference_pb2.Conversation(messages=messages), tools=tools, **fields
    )


@dataclass
class Heard:
    """What a call said, joined."""

    text: str = ""
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    parts: int = 0
    reasons: list[int] = field(default_factory=list)


async def heard(rig: Rig, request: inference_pb2.GenerateRequest) -> dict[int, Heard]:
    found: dict[int, Heard] = {}
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        async for response in stub.Generate(request):
            if response.HasField("finished"):
                found[response.finished.answer].reasons.append(response.finished.reason)
            elif response.HasField("delta"):
                add(found.setdefault(response.delta.answer, Heard()), response.delta)
    return found


def add(answer: Heard, delta: inference_pb2.GenerateDelta) -> None:
    assert not answer.reasons, "nothing comes after the end"
    answer.text += delta.text
    for part in delta.tool_calls:
        answer.parts += 1
        if part.index == len(answer.names):
            answer.names.append(part.name)
            answer.ids.append(part.id)
            answer.arguments.append("")
        else:
            assert not part.name
            assert not part.id
        answer.arguments[part.index] += part.arguments


@asynccontextmanager
async def rig_of(tmp_path: Path, template: str | None) -> AsyncIterator[Rig]:
    folder = write_tokenizer_folder(
        tmp_path / "tokenizer", chat_template=template, more_special=MARKERS
    )
    async with running_rig(folder) as rig:
        yield rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of(tmp_path, TEMPLATES["hermes"]) as started:
        yield started


@pytest.mark.parametrize("family", CALL)
async def test_a_call_is_streamed(tmp_path: Path, family: str) -> None:
    async with rig_of(tmp_path, TEMPLATES[family]) as rig:
        rig.answer_with(CALL[family])
        answer = (await heard(rig, ask()))[0]
    assert answer.text == ""
    assert answer.names == ["weather"]
    assert answer.ids[0]
    assert json.loads(answer.arguments[0]) == CITY
    assert answer.reasons == [common_pb2.FINISH_REASON_TOOL_CALLS]
    if family != "llama3_json":  # without a marker a call is known only once it is whole
        assert answer.parts > 5


async def test_text_and_two_calls_in_each_of_two_answers(rig: Rig) -> None:
    second = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    rig.answer_with(f"Let me see.\n{CALL['hermes']}\n{second}")
    answers = await heard(rig, ask(num_answers=2))
    assert set(answers) == {0, 1}
    for answer in answers.values():
        assert answer.text == "Let me see."
        assert answer.names == ["weather", "clock"]
        assert [json.loads(text) for text in answer.arguments] == [CITY, {}]
    assert len({call_id for answer in answers.values() for call_id in answer.ids}) == 4


async def test_what_is_no_call_is_text(rig: Rig) -> None:
    text = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'
    rig.answer_with(text)
    answer = (await heard(rig, ask()))[0]
    assert answer.text == text
    assert answer.reasons == [common_pb2.FINISH_REASON_STOP]


async def test_without_tools_calls_stay_text(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    answer = (await heard(rig, ask(tools=())))[0]
    assert answer.text == CALL["hermes"]
    hidden = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_NONE)
    assert (await heard(rig, ask(tool_choice=hidden)))[0].text == CALL["hermes"]


async def test_earlier_calls_and_tools_are_printed_as_over_rest(rig: Rig) -> None:
    call = inference_pb2.ToolCall(
        id="call_1",
        function=inference_pb2.FunctionCall(name="weather", arguments=json.dumps(CITY)),
    )
    turns = (
        inference_pb2.ChatMessage(role="user", content="hi"),
        inference_pb2.ChatMessage(role="assistant", tool_calls=[call]),
        inference_pb2.ChatMessage(role="tool", content="sunny", tool_call_id="call_1"),
    )
    seen: list[list[int]] = []
    eos = rig.simulation.tokenizer.eos_ids[0]

    def remember(prompt: Any) -> list[int]:
        seen.append(list(prompt))
        return [eos]

    rig.simulation.answer = remember
    await heard(rig, ask(turns=turns))
    answer = await rig.chat(
        messages=[
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": json.dumps(CITY)},
                    }
                ],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        ],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Weather of a city",
                    "parameters": SCHEMA,
                },
            },
            {"type": "function", "function": {"name": "clock"}},
        ],
    )
    assert answer.status_code == 200
    assert seen[0] == seen[-1]


async def test_a_required_call_reaches_the_workers_as_a_grammar(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    required = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_REQUIRED, allowed=["weather"])
    answer = (await heard(rig, ask(tool_choice=required)))[0]
    assert answer.names == ["weather"]
    assert "weather" in rig.simulation.grammars[-1]
    assert "clock" not in rig.simulation.grammars[-1]


UNKNOWN_MODE = inference_pb2.ToolChoice()
UNKNOWN_MODE.ParseFromString(b"\x08\x09")
BAD_CALL = inference_pb2.ChatMessage(role="assistant", tool_calls=[inference_pb2.ToolCall()])


REFUSALS = (
    (ask(tools=[function("")]), "invalid_value", "tools.0.function.name"),
    (ask(tools=[function("a"), function("a")]), "invalid_value", "tools.1.function.name"),
    (
        ask(tools=[function("a", [1])]),
        "invalid_json_schema",
        "tools.0.function.parameters",
    ),
    (
        ask(tools=[function("a", {"type": "string"})]),
        "invalid_value",
        "tools.0.function.parameters",
    ),
    (
        ask(tools=[function("a", {"not": {}}, strict=True)]),
        "invalid_json_schema",
        "tools.0.function.parameters",
    ),
    (
        ask(tools=[inference_pb2.Tool()]),
        "missing_required_parameter",
        "tools.0.function",
    ),
    (
        ask(
            tools=(),
            tool_choice=inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_REQUIRED),
        ),
        "invalid_value",
        "tool_choice",
    ),
    (
        ask(tool_choice=inference_pb2.ToolChoice(allowed=["boat"])),
        "invalid_value",
        "tool_choice",
    ),
    (
        ask(
            tool_choice=inference_pb2.ToolChoice(
                mode=inference_pb2.TOOL_MODE_NONE, allowed=["clock"]
            )
        ),
        "invalid_value",
        "tool_choice",
    ),
    (ask(tool_choice=UNKNOWN_MODE), "invalid_value", "tool_choice"),
    (inference_pb2.GenerateRequest(text="a", tools=TOOLS), "invalid_value", "tools"),
    (
        ask(
            tool_choice=inference_pb2.ToolChoice(mode=inference_pb2.TOOL_MODE_REQUIRED),
            ignore_eos=True,
        ),
        "invalid_value",
        "ignore_eos",
    ),
    (
        ask(turns=[BAD_CALL]),
        "invalid_value",
        "conversation.messages.0.tool_calls.0.function.name",
    ),
)


async def test_refusals_name_the_field(rig: Rig) -> None:
    for request_pb, code, param in REFUSALS:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await heard(rig, request_pb)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = error_from_rpc(caught.value)
        assert (error.error_code, error.param) == (code, param)
    assert "Prefill" not in rig.methods(rig.prefills[0])


async def test_a_large_request_is_read_as_a_small_one_is(rig: Rig) -> None:
    wordy = function("weather", SCHEMA, description="w" * 70_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await heard(rig, ask(tools=[wordy, function("")]))
    assert error_from_rpc(caught.value).param == "tools.1.function.name"


async def test_a_model_without_a_format_says_so(tmp_path: Path) -> None:
    async with rig_of(tmp_path, None) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await heard(rig, ask())
    assert error_from_rpc(caught.value).error_code == "tool_parser_missing"
