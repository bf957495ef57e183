"""Tools over REST in front of simulated workers that say what a test wants them to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.gateway_rig import Rig, data_frames, running_rig
from tests.support.simulated_workers import Die
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

MARKERS = ("[TOOL_CALLS]", "<|python_tag|>")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CITY = {"city": "Zürich {\"]}"}  # fmt: skip
CALL = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(CITY)}}}\n</tool_call>',
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {json.dumps(CITY)}}}]',
    "llama3_json": f'{{"name": "weather", "parameters": {json.dumps(CITY)}}}',
}


@asynccontextmanager
async def rig_of(tmp_path: Path, template: str | None, **config: Any) -> AsyncIterator[Rig]:
    """A gateway whose model has a chat template, and markers that are special tokens."""
    folder = write_tokenizer_folder(
        tmp_path / "tokenizer", chat_template=template, more_special=MARKERS
    )
    async with running_rig(folder, **config) as rig:
        yield rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of(tmp_path, TEMPLATES["hermes"]) as started:
        yield started


def deltas(response: Any) -> list[dict[str, Any]]:
    """Deltas and finish reasons of a stream's chunks."""
    frames = data_frames(response.content)
    assert frames[-1] == "[DONE]"
    return [choice for frame in frames[:-1] for choice in frame["choices"]]


@pytest.mark.parametrize("family", CALL)
async def test_a_call_whole_and_streamed(tmp_path: Path, family: str) -> None:
    async with rig_of(tmp_path, TEMPLATES[family]) as rig:
        rig.answer_with(CALL[family])
        (choice,) = (await rig.chat(tools=TOOLS)).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert set(call) == {"id", "type", "function"}
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == CITY
        entries = deltas(await rig.chat(tools=TOOLS, stream=True))
    assert entries[0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["finish_reason"] for e in entries] == [None] * (len(entries) - 1) + ["tool_calls"]
    assert entries[-1]["delta"] == {}
    fragments = [call for e in entries for call in e["delta"].get("tool_calls", [])]
    assert {fragment["index"] for fragment in fragments} == {0}
    assert [("id" in f, "type" in f, "name" in f["function"]) for f in fragments] == [
        (True, True, True)
    ] + [(False, False, False)] * (len(fragments) - 1)
    arguments = "".join(f["function"]["arguments"] for f in fragments)
    assert json.loads(arguments) == CITY
    assert not any(e["delta"].get("content") for e in entries)
    if family != "llama3_json":  # without a marker a call is known only once it is whole
        assert len(fragments) > 5


async def test_text_and_two_calls(rig: Rig) -> None:
    second = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    rig.answer_with(f"Let me see.\n{CALL['hermes']}\n{second}")
    async with (
        openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none") as client,
        client.chat.completions.stream(
            model="simulated",
            messages=[{"role": "user", "content": "hi"}],
            tools=TOOLS,  # type: ignore[arg-type]
        ) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["weather", "clock"]
    assert [json.loads(call.function.arguments) for call in calls] == [CITY, {}]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        'Write <tool_call> {"name": ',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        "<tool_call>\n[1]\n</tool_call>",
        "{" * 300,
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_call_is_content(rig: Rig, text: str, stream: bool) -> None:
    rig.answer_with(text)
    response = await rig.chat(tools=TOOLS, stream=stream)
    assert response.status_code == 200
    if stream:
        entries = deltas(response)
        assert "".join(e["delta"].get("content") or "" for e in entries) == text
        assert entries[-1]["finish_reason"] == "stop"
        return
    (choice,) = response.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_malformed_json_of_a_family_without_markers_is_content(tmp_path: Path) -> None:
    async with rig_of(tmp_path, TEMPLATES["llama3_json"]) as rig:
        for text in ('{"name": "weather", "parameters": {"city": ', '{"a": 1}', '{"name": 1}'):
            rig.answer_with(text)
            (choice,) = (await rig.chat(tools=TOOLS)).json()["choices"]
            assert choice["message"]["content"] == text
            assert choice["finish_reason"] == "stop"


async def test_max_tokens_in_the_middle_of_a_call(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    for stream in (False, True):
        response = await rig.chat(tools=TOOLS, max_tokens=50, stream=stream)
        if stream:
            assert deltas(response)[-1]["finish_reason"] == "length"
        else:
            (choice,) = response.json()["choices"]
            assert choice["finish_reason"] == "length"
            (call,) = choice["message"]["tool_calls"]
            assert '{"city": "Zürich'.startswith(call["function"]["arguments"][:5])


async def test_choices_have_calls_of_their_own(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    entries = deltas(await rig.chat(tools=TOOLS, n=2, stream=True))
    for index in (0, 1):
        fragments = [
            call
            for e in entries
            if e["index"] == index
            for call in e["delta"].get("tool_calls", [])
        ]
        assert sum("id" in fragment for fragment in fragments) == 1
        assert json.loads("".join(f["function"]["arguments"] for f in fragments)) == CITY


async def test_logprobs_go_with_calls(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    entries = deltas(await rig.chat(tools=TOOLS, stream=True, logprobs=True))
    counted = sum(len((e["logprobs"] or {}).get("content") or []) for e in entries)
    (choice,) = (await rig.chat(tools=TOOLS, logprobs=True)).json()["choices"]
    assert counted == len(choice["logprobs"]["content"]) > 0


async def test_no_tools_are_shown_when_none_may_be_called(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    (choice,) = (await rig.chat(tools=TOOLS, tool_choice="none")).json()["choices"]
    assert choice["message"]["content"] == CALL["hermes"]
    assert choice["finish_reason"] == "stop"
    prompts = [
        (await rig.chat(tools=TOOLS, tool_choice=choice)).json()["usage"]["prompt_tokens"]
        for choice in ("none", "auto")
    ]
    assert prompts[0] < prompts[1]


async def test_tools_of_earlier_turns_are_rendered(rig: Rig) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    response = await rig.chat(messages=turns, tools=TOOLS)
    assert response.status_code == 200
    without = await rig.chat(messages=[turns[0], {"role": "assistant", "content": ""}, turns[2]])
    spent = [r.json()["usage"]["prompt_tokens"] for r in (response, without)]
    assert spent[0] > spent[1] + 40


SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "array", "uniqueItems": True}},
}
STRICT_BAD = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"not": {}}}},
    },
}
LOOSE_BAD = {"type": "function", "function": {**STRICT_BAD["function"], "strict": False}}  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "nobody"}}

REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"response_format": SCHEMA_FORMAT},
        "response_format.json_schema.schema",
        "invalid_json_schema",
        "uniqueItems",
    ),
    ({"tools": [STRICT_BAD]}, "tools.0.function.parameters", "invalid_json_schema", "not"),
    (
        {"tools": [CLOCK, LOOSE_BAD], "tool_choice": "required"},
        "tools.1.function.parameters",
        "invalid_json_schema",
        "not",
    ),
    ({"tools": [CLOCK, CLOCK]}, "tools.1.function.name", "invalid_value", "clock"),
    ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice", "invalid_value", "nobody"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "without tools"),
    (
        {"response_format": {"type": "json_object"}, "ignore_eos": True},
        "ignore_eos",
        "invalid_value",
        "response_format",
    ),
    (
        {"tools": [CLOCK], "tool_choice": "required", "min_tokens": 3},
        "min_tokens",
        "invalid_value",
        "tools",
    ),
]


async def test_refusals_name_the_field_before_any_work(rig: Rig) -> None:
    for fields, param, code, said in REFUSED:
        response = await rig.chat(**fields)
        error = response.json()["error"]
        assert response.status_code == 400, fields
        assert (error["param"], error["code"]) == (param, code)
        assert said in error["message"]
    assert rig.methods(rig.prefills[0]).count("Prefill") == 0


async def test_a_schema_that_nobody_enforces_is_not_looked_at(rig: Rig) -> None:
    assert (await rig.chat(tools=[LOOSE_BAD])).status_code == 200


@pytest.mark.parametrize(
    ("template", "config", "said"),
    [
        (None, {}, "chat template"),
        ("{{ messages }}", {}, "does not print tools"),
        ("{{ messages }}{{ tools }}", {}, "--tool-parser"),
        (TEMPLATES["hermes"], {"tool_parser": "none"}, "tool_parser"),
    ],
)
async def test_a_model_without_a_format_is_told_what_to_set(
    tmp_path: Path, template: str | None, config: dict[str, Any], said: str
) -> None:
    async with rig_of(tmp_path, template, **config) as rig:
        response = await rig.chat(tools=TOOLS)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["code"]) == ("tools", "tool_parser_missing")
    assert said in error["message"]


async def test_the_operator_names_the_format(tmp_path: Path) -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    async with rig_of(tmp_path, template, tool_parser="mistral") as rig:
        rig.answer_with(CALL["mistral"])
        (choice,) = (await rig.chat(tools=TOOLS)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"][0]["id"]) == 9


async def test_allowed_tools_narrow_what_is_called(rig: Rig) -> None:
    rig.answer_with(CALL["hermes"])
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "clock"}}],
        },
    }
    (choice,) = (await rig.chat(tools=TOOLS, tool_choice=allowed)).json()["choices"]
    assert choice["message"]["content"] == CALL["hermes"]


async def test_every_attempt_and_both_workers_have_the_same_grammar(tmp_path: Path) -> None:
    """A retry after the first token was shown goes on under the grammar that it was drawn with."""
    async with rig_of(tmp_path, TEMPLATES["hermes"], prefills=2, decodes=2) as rig:
        rig.prefills[0].plan.at("transfer", Die())
        rig.prefills[1].plan.at("transfer", Die())
        rig.answer_with('{"a": 1}')
        response = await rig.chat(response_format={"type": "json_object"}, stream=True)
        assert deltas(response)[-1]["finish_reason"] == "stop"
        seen = rig.simulation.grammars
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert '"json_schema"' in seen[0]


async def test_a_request_without_a_format_has_no_grammar(rig: Rig) -> None:
    await rig.chat(response_format={"type": "text"})
    assert rig.simulation.grammars == ["", ""]
