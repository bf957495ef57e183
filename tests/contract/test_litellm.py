"""LiteLLM in front of the real pair."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.contract_cases import MESSAGES, TOOL, FindAnimal, Place
from tests.support.full_stack import Stack
from tests.support.litellm_client import QUIET, LiteLLM, clean_litellm, stream_chunk_builder

pytestmark = [pytest.mark.asyncio(loop_scope="module"), QUIET]

GREEDY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[LiteLLM]:
    async with clean_litellm():
        yield LiteLLM(stack.url, model="tiny")


async def chunks_of(client: LiteLLM, **fields: Any) -> list[Any]:
    return [chunk async for chunk in await client.chat(**fields, stream=True)]


async def test_whole_and_streamed(client: LiteLLM) -> None:
    whole = await client.chat(**GREEDY)
    (choice,) = whole.choices
    assert choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    chunks = await chunks_of(client, **GREEDY, stream_options={"include_usage": True})
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == (
        choice.message.content
    )
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == 12
    built: Any = stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == choice.message.content
    assert built.choices[0].finish_reason == "length"
    assert built.usage.total_tokens == whole.usage.total_tokens
    stop = choice.message.content[4:6]
    stopped = await client.chat(**GREEDY, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == choice.message.content.partition(stop)[0]


async def test_choices_and_logprobs(client: LiteLLM) -> None:
    asked = GREEDY | {"temperature": 1, "n": 2, "seed": 7}
    whole = await client.chat(**asked, logprobs=True, top_logprobs=2)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 2
    for choice in whole.choices:
        assert len(choice.logprobs.content) == 12
        assert {len(entry.top_logprobs) for entry in choice.logprobs.content} == {2}
    streamed = {0: "", 1: ""}
    for chunk in await chunks_of(client, **asked):
        for piece in chunk.choices:
            streamed[piece.index] += piece.delta.content or ""
    assert [streamed[0], streamed[1]] == texts


async def test_completions(client: LiteLLM) -> None:
    asked: dict[str, Any] = {"prompt": "The fox is", "temperature": 0, "max_tokens": 9}
    whole = await client.complete(**asked)
    chunks = [chunk async for chunk in await client.complete(**asked, stream=True)]
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.choices[0].text
    assert whole.usage.completion_tokens == 9


async def test_structured_output(client: LiteLLM) -> None:
    asked = {"messages": MESSAGES, "temperature": 1, "max_tokens": 100, "seed": 4}
    answer = await client.chat(**asked, response_format=Place)
    Place.model_validate_json(answer.choices[0].message.content)
    chunks = await chunks_of(client, **asked, response_format=Place)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == (
        answer.choices[0].message.content
    )


async def test_tools_whole_streamed_and_the_turn_after(client: LiteLLM) -> None:
    asked = {
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 100,
        "seed": 2,
    }
    whole = await client.chat(messages=MESSAGES, **asked)
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    FindAnimal.model_validate_json(call.function.arguments)
    chunks = await chunks_of(client, messages=MESSAGES, **asked)
    built: Any = stream_chunk_builder(chunks)
    (again,) = built.choices[0].message.tool_calls
    assert again.function == call.function
    assert built.choices[0].finish_reason == "tool_calls"
    turns = [
        *MESSAGES,
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "in the forest"},
    ]
    answer = await client.chat(messages=turns, tools=[TOOL], tool_choice="none", max_tokens=3)
    assert not answer.choices[0].message.tool_calls


async def test_options_and_what_was_done(client: LiteLLM) -> None:
    full = await client.chat(**GREEDY, extra_body={"tandem": {"mode": "full"}})
    assert full.tandem["kept_tokens"] == full.tandem["prompt_tokens"] == full.usage.prompt_tokens
    both = await client.chat(**GREEDY, tandem={"mode": "both"}, temprature=1)
    assert full.system_fingerprint != both.system_fingerprint
    headers = both._hidden_params["additional_headers"]
    assert headers["llm_provider-x-ignored-params"] == "temprature"
