"""Functions in responses: calls as items, strictness, choices, limits."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.gateway_rig import DEFAULT_ANSWER, Rig
from tests.support.response_cases import (
    CALL,
    CLOCK,
    TICK,
    WEATHER,
    as_chat,
    both,
    nested,
    prompts_of,
)
from tests.support.response_events import whole_response
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose chat template knows tools."""
    folder = tmp_path_factory.mktemp("calls") / "tokenizer"
    return write_tokenizer_folder(folder, chat_template=TEMPLATES["hermes"])


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as opened:
        yield opened


async def test_text_and_calls_are_items_in_their_order(
    rig: Rig, client: openai.AsyncOpenAI
) -> None:
    rig.answer_with(f"Let me see.\n{CALL}\n{TICK}")
    tools = [WEATHER, CLOCK]
    for response in await both(rig, tools=tools):
        text, *calls = response["output"]
        assert text["content"][0]["text"] == "Let me see."
        assert [(c["name"], json.loads(c["arguments"]), c["status"]) for c in calls] == [
            ("weather", {"city": "Zürich"}, "completed"),
            ("clock", {}, "completed"),
        ]
        assert response["status"] == "completed"
    async with client.responses.stream(
        model="simulated",
        input="hi",
        tools=tools,  # type: ignore[arg-type]
    ) as stream:
        await stream.until_done()
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]

    # What came goes back as it came, with what the function gave.
    rig.answer_with("Rain.")
    given = [{"role": "user", "content": "Weather?"}, *(i.to_dict() for i in final.output)]
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in final.output
        if item.type == "function_call"
    ]
    typed = await client.responses.create(
        model="simulated",
        input=[*given, *outputs],  # type: ignore[list-item]
        tools=tools,  # type: ignore[arg-type]
    )
    assert typed.output_text == "Rain."


async def test_a_call_alone_has_no_message_and_an_answer_without_text_is_one(rig: Rig) -> None:
    rig.answer_with(TICK)
    for response in await both(rig, tools=[CLOCK]):
        assert [item["type"] for item in response["output"]] == ["function_call"]
    rig.answer_with("")
    for response in await both(rig, tools=[CLOCK]):
        (message,) = response["output"]
        assert (message["status"], message["content"][0]["text"]) == ("completed", "")
        assert response["usage"]["output_tokens"] == 1


async def test_the_limit_makes_it_incomplete(rig: Rig) -> None:
    cases = ((DEFAULT_ANSWER, 3, "message"), (CALL, 45, "function_call"))
    for answer, limit, kind in cases:
        rig.answer_with(answer)
        for response in await both(rig, tools=[WEATHER], max_output_tokens=limit):
            assert response["status"] == "incomplete"
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert response["completed_at"] is None
            assert response["usage"]["output_tokens"] == limit
            (item,) = response["output"]
            assert (item["type"], item["status"]) == (kind, "incomplete")
    with pytest.raises(json.JSONDecodeError):
        json.loads(item["arguments"])


async def test_tools_are_strict_unless_they_say_otherwise(rig: Rig) -> None:
    rig.answer_with("Hello.")
    odd = {**WEATHER, "name": "odd", "parameters": {"type": "object", "not": {}}}

    async def held(*tools: dict[str, Any]) -> list[bool]:
        rig.simulation.grammars.clear()
        response = whole_response((await rig.respond(tools=list(tools))).content)
        (grammar,) = set(rig.simulation.grammars)
        told = [tool["strict"] for tool in response["tools"]]
        assert ('"city"' in grammar) == told[0]
        return told

    assert await held(WEATHER) == [True]
    assert await held({**WEATHER, "strict": False}) == [False]
    assert await held({**WEATHER, "strict": None}, CLOCK) == [True, True]
    assert await held(WEATHER, {**odd, "strict": False}) == [True, False]
    # One that cannot be held to its schema: nobody asked for it, so the answer tells.
    assert await held(WEATHER, odd) == [False, False]
    assert await held({**WEATHER, "strict": True}, odd) == [True, False]
    refused = await rig.respond(tools=[WEATHER, {**odd, "strict": True}])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools.1.parameters"


async def test_tool_choices_are_those_of_chat(rig: Rig) -> None:
    rig.answer_with(TICK)
    tools, named = [WEATHER, CLOCK], {"type": "function", "name": "clock"}
    in_full = {"type": "function", "function": {"name": "clock"}}
    allowed = {"mode": "required", "tools": [in_full]}
    choices: list[tuple[Any, Any]] = [
        ("required", "required"),
        (named, in_full),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [named]},
            {"type": "allowed_tools", "allowed_tools": allowed},
        ),
    ]
    for choice, in_chat in choices:
        rig.simulation.grammars.clear()
        odd = choice | {"more": nested(300)} if isinstance(choice, dict) else choice
        response = whole_response((await rig.respond(tools=tools, tool_choice=odd)).content)
        assert response["tool_choice"] == choice
        assert response["output"][0]["name"] == "clock"
        (grammar,) = set(rig.simulation.grammars)
        rig.simulation.grammars.clear()
        await rig.chat(tools=[as_chat(tool) for tool in tools], tool_choice=in_chat)
        assert set(rig.simulation.grammars) == {grammar}


async def test_tools_that_may_not_be_called_are_hidden(rig: Rig) -> None:
    rig.answer_with(CALL)
    seen = prompts_of(rig)
    response = whole_response((await rig.respond(tools=[WEATHER], tool_choice="none")).content)
    assert response["output"][0]["content"][0]["text"] == CALL
    await rig.chat()
    assert len(seen) == 1
