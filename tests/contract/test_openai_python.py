"""openai-python in front of the real pair."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.support.contract_cases import MESSAGES, TOOL, FindAnimal, Place
from tests.support.full_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY: Any = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
PLAIN: Any = {"model": "tiny", "prompt": "The fox is", "temperature": 0, "max_tokens": 12}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0) as opened:
        yield opened


async def test_chat_whole_streamed_and_by_the_helper(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**GREEDY)
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    stream = await client.chat.completions.create(
        **GREEDY, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == choice.message.content
    assert chunks[-1].usage == whole.usage
    assert not any(chunk.usage for chunk in chunks[:-1])
    stop = text[4:6]
    async with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=12, stop=[stop]
    ) as events:
        last = [event.chunk async for event in events if event.type == "chunk"][-1]
        final = await events.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert final.choices[0].finish_reason == "stop"
    assert last.choices[0].model_extra == {"stop_reason": stop}


async def test_a_client_of_threads(stack: Stack, client: openai.AsyncOpenAI) -> None:
    def ask() -> tuple[str, str]:
        with openai.OpenAI(base_url=stack.url, api_key="none", max_retries=0) as blocking:
            whole = blocking.chat.completions.create(**GREEDY)
            with blocking.chat.completions.create(**GREEDY, stream=True) as stream:
                pieces = [c.delta.content or "" for chunk in stream for c in chunk.choices]
        return whole.choices[0].message.content, "".join(pieces)

    whole, streamed = await asyncio.to_thread(ask)
    again = await client.chat.completions.create(**GREEDY)
    assert whole == streamed == again.choices[0].message.content


async def test_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(**PLAIN)
    stream = await client.completions.create(**PLAIN, stream=True)
    assert "".join([c.choices[0].text async for c in stream]) == whole.choices[0].text
    several = await client.completions.create(
        **(PLAIN | {"prompt": ["The fox is", [1, 2, 3]]}), n=2, seed=3
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == whole.choices[0].text


async def test_choices_of_one_stream(client: openai.AsyncOpenAI) -> None:
    asked: Any = GREEDY | {"temperature": 1.0, "n": 3, "seed": 7}
    whole = await client.chat.completions.create(**asked)
    texts = {choice.index: "" for choice in whole.choices}
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(texts.values())) > 1


async def test_logprobs_rebuild_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content
    assert entries is not None
    assert all(entry.bytes is not None for entry in entries)
    raw = b"".join(bytes(entry.bytes or ()) for entry in entries)
    assert raw.decode("utf-8", errors="replace") == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    plain = await client.completions.create(**PLAIN, logprobs=2)
    found = plain.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert len(found.tokens) == len(found.token_logprobs or ()) == len(found.text_offset or ())


async def test_shapes_and_tools(client: openai.AsyncOpenAI) -> None:
    parsed = await client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Place, temperature=1, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Place)
    async with client.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(FindAnimal)],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=2,
    ) as events:
        kinds = {event.type async for event in events}
        final = await events.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, FindAnimal)
    turns: Any = [
        *MESSAGES,
        choice.message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "in the forest"},
    ]
    asked: Any = GREEDY | {"messages": turns, "tools": [TOOL], "tool_choice": "none"}
    answer = await client.chat.completions.create(**asked)
    assert answer.choices[0].message.tool_calls is None


async def test_options_and_what_was_done(client: openai.AsyncOpenAI) -> None:
    full: Any = await client.chat.completions.create(
        **GREEDY, extra_body={"tandem": {"mode": "full"}}
    )
    both: Any = await client.chat.completions.create(
        **GREEDY, extra_body={"tandem": {"mode": "both", "keep_rate": 0.5}}
    )
    assert full.tandem["kept_tokens"] == full.tandem["prompt_tokens"] == full.usage.prompt_tokens
    assert both.tandem["prompt_tokens"] == both.usage.prompt_tokens
    assert full.system_fingerprint != both.system_fingerprint


async def test_ignored_fields_are_named(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        **GREEDY, extra_body={"temprature": 1, "tandem": {"keep_rat": 1}}, user="me", store=False
    )
    assert raw.headers["x-ignored-params"] == "temprature, tandem.keep_rat"
    assert "temprature -> temperature" in raw.headers["x-param-hint"]
    assert raw.request_id == raw.headers["x-request-id"]


async def test_models(client: openai.AsyncOpenAI) -> None:
    (model,) = (await client.models.list()).data
    assert (model.id, model.object) == ("tiny", "model")
    assert (await client.models.retrieve("tiny")).model_extra == {"max_model_len": 1024}
