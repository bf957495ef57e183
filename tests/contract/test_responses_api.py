"""The Responses API of the real pair, read by openai-python and LangChain."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from langchain_core.messages import HumanMessage, ToolMessage
from openai.types.responses import Response

from tests.support.contract_cases import QUESTION, FindAnimal, Place
from tests.support.full_stack import Stack
from tests.support.langchain_client import LangChain, added_up, open_langchain
from tests.support.response_events import named_events, whole_response

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY: dict[str, Any] = {"model": "tiny", "input": QUESTION, "temperature": 0}
FREE: dict[str, Any] = {"temperature": 1, "extra_body": {"seed": 3}, "max_output_tokens": 100}
TOOL: Any = openai.pydantic_function_tool(FindAnimal)["function"] | {"type": "function"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def langchain(stack: Stack) -> AsyncIterator[LangChain]:
    async with open_langchain(stack.url, model="tiny") as opened:
        yield opened


async def test_whole_streamed_and_chat_agree(stack: Stack, client: openai.AsyncOpenAI) -> None:
    asked = {**GREEDY, "max_output_tokens": 12, "instructions": "Be brief.", "top_logprobs": 1}
    body = {**asked, "ignore_eos": True}
    whole = whole_response((await stack.http.post("/v1/responses", json=body)).content)
    streamed = await stack.http.post("/v1/responses", json={**body, "stream": True})
    last = named_events(streamed.content)[-1]["response"]
    (message,), (again,) = whole["output"], last["output"]
    (part,) = message["content"]
    assert [part] == again["content"]
    assert len(part["logprobs"]) == 12
    assert whole["status"] == last["status"] == "incomplete"
    assert whole["usage"] == last["usage"]
    assert whole["system_fingerprint"] == last["system_fingerprint"]

    turns: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    chat = await client.chat.completions.create(
        model="tiny",
        messages=turns,
        temperature=0,
        max_completion_tokens=12,
        extra_body={"ignore_eos": True},
    )
    assert chat.choices[0].message.content == part["text"]
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == whole["usage"]["input_tokens"]

    more = {"ignore_eos": True}
    typed = await client.responses.create(**asked, extra_body=more)
    assert typed.output_text == part["text"]
    async with client.responses.stream(**asked, extra_body=more) as stream:
        deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
    assert "".join(deltas) == part["text"]

    def blocking() -> str:
        with openai.OpenAI(base_url=stack.url, api_key="none", max_retries=0) as opened:
            answer = opened.responses.create(**asked, extra_body=more)
        assert isinstance(answer, Response)
        return answer.output_text

    assert await asyncio.to_thread(blocking) == part["text"]


async def test_shapes_calls_and_the_turn_after(client: openai.AsyncOpenAI) -> None:
    parsed = await client.responses.parse(model="tiny", input=QUESTION, text_format=Place, **FREE)
    assert isinstance(parsed.output_parsed, Place)
    required: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    whole = await client.responses.create(model="tiny", input=QUESTION, **required, **FREE)
    async with client.responses.stream(model="tiny", input=QUESTION, **required, **FREE) as stream:
        final = await stream.get_final_response()
    (call,), (again,) = whole.output, final.output
    assert call.type == again.type == "function_call"
    assert call.arguments == again.arguments
    FindAnimal.model_validate_json(call.arguments)
    turns: Any = [
        {"role": "user", "content": QUESTION},
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "in the forest"},
    ]
    after = await client.responses.create(
        model="tiny", input=turns, tools=[TOOL], tool_choice="none", max_output_tokens=8
    )
    assert [item.type for item in after.output] == ["message"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
async def test_langchain_on_responses(langchain: LangChain) -> None:
    settings: dict[str, Any] = {"use_responses_api": True, "max_tokens": 100}
    greedy = langchain.chat(**settings | {"temperature": 0, "max_tokens": 12})
    whole = await greedy.ainvoke(QUESTION)
    streamed, _ = await added_up(greedy, QUESTION)
    assert whole.text == streamed.text
    assert whole.usage_metadata == streamed.usage_metadata
    free = langchain.chat(**settings, temperature=1, extra_body={"seed": 3})
    found = await free.with_structured_output(Place, method="json_schema").ainvoke(QUESTION)
    assert isinstance(found, Place)
    bound = free.bind_tools([FindAnimal], tool_choice="any", parallel_tool_calls=False)
    asked = await bound.ainvoke(QUESTION)
    (call,) = asked.tool_calls
    FindAnimal.model_validate(call["args"])
    told, _ = await added_up(bound, QUESTION)
    assert [(c["name"], c["args"]) for c in told.tool_calls] == [(call["name"], call["args"])]
    result = ToolMessage("in the forest", tool_call_id=call["id"])
    after = greedy.bind_tools([FindAnimal], tool_choice="none")
    assert (await after.ainvoke([HumanMessage(QUESTION), asked, result])).tool_calls == []
