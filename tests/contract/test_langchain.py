"""LangChain (`langchain-openai`) in front of the real pair."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.support.contract_cases import QUESTION, FindAnimal, Place
from tests.support.full_stack import Stack
from tests.support.langchain_client import LangChain, added_up, open_langchain

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
FREE: dict[str, Any] = {"temperature": 1, "seed": 3, "max_tokens": 100}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[LangChain]:
    async with open_langchain(stack.url, model="tiny") as opened:
        yield opened


async def test_whole_and_streamed(client: LangChain) -> None:
    model = client.chat(**GREEDY, stream_usage=True)
    whole = await model.ainvoke(QUESTION)
    assert isinstance(whole.content, str)
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.response_metadata["model_name"] == "tiny"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 12
    streamed, _ = await added_up(model, QUESTION)
    assert streamed.content == whole.content
    assert streamed.usage_metadata == whole.usage_metadata
    assert streamed.response_metadata["finish_reason"] == "length"
    assert await asyncio.to_thread(lambda: model.invoke(QUESTION).content) == whole.content
    stop = whole.content[4:6]
    stopped = await model.ainvoke(QUESTION, stop=[stop])
    assert stopped.content == whole.content.partition(stop)[0]


async def test_choices_and_logprobs(client: LangChain) -> None:
    result = await client.chat(n=2, temperature=1, seed=7, max_tokens=12).agenerate(
        [[HumanMessage(QUESTION)]]
    )
    (generations,) = result.generations
    assert len({generation.text for generation in generations}) == 2
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["completion_tokens"] == 24
    model = client.chat(**GREEDY).bind(logprobs=True, top_logprobs=2)
    told = await model.ainvoke(QUESTION)
    entries = told.response_metadata["logprobs"]["content"]
    assert len(entries) == 12
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    streamed, _ = await added_up(model, QUESTION)
    assert streamed.response_metadata["logprobs"]["content"] == entries


async def test_completions(client: LangChain) -> None:
    model = client.completion(**GREEDY)
    whole = await model.ainvoke("The fox is")
    assert "".join([piece async for piece in model.astream("The fox is")]) == whole
    several = await model.agenerate(["The fox is", "A dog"])
    assert several.generations[0][0].text == whole
    assert len(several.generations) == 2


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output(client: LangChain, method: Any) -> None:
    model = client.chat(**FREE).with_structured_output(Place, method=method)
    found = await model.ainvoke(QUESTION)
    assert isinstance(found, Place)
    assert [piece async for piece in model.astream(QUESTION)][-1] == found


async def test_an_object_that_was_cut_is_told_as_cut(client: LangChain) -> None:
    model = client.chat(temperature=1, seed=5, max_tokens=20)
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        await model.bind(response_format={"type": "json_object"}).ainvoke(QUESTION)
    content = caught.value.completion.choices[0].message.content
    assert content is not None
    assert content.startswith("{")


async def test_tools_and_the_turn_after(client: LangChain) -> None:
    model = client.chat(**FREE)
    bound = model.bind_tools([FindAnimal], tool_choice="any", parallel_tool_calls=False)
    whole = await bound.ainvoke(QUESTION)
    assert whole.response_metadata["finish_reason"] == "tool_calls"
    assert whole.invalid_tool_calls == []
    (call,) = whole.tool_calls
    FindAnimal.model_validate(call["args"])
    streamed, pieces = await added_up(bound, QUESTION)
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [(call["name"], call["args"])]
    fragments: list[Any] = [f for piece in pieces for f in getattr(piece, "tool_call_chunks", ())]
    assert sum(bool(fragment["id"]) for fragment in fragments) == 1
    turns = [
        HumanMessage(QUESTION),
        AIMessage(content="", tool_calls=whole.tool_calls),
        ToolMessage("in the forest", tool_call_id=call["id"]),
    ]
    after = client.chat(**GREEDY).bind_tools([FindAnimal], tool_choice="none")
    assert (await after.ainvoke(turns)).tool_calls == []


async def test_options_and_ignored_fields(client: LangChain) -> None:
    fingerprints = set()
    for mode in ("full", "both"):
        model = client.chat(
            **GREEDY,
            extra_body={"tandem": {"mode": mode}, "temprature": 1},
            include_response_headers=True,
        )
        answer = await model.ainvoke(QUESTION)
        assert answer.response_metadata["headers"]["x-ignored-params"] == "temprature"
        fingerprints.add(answer.response_metadata["system_fingerprint"])
    assert len(fingerprints) == 2
