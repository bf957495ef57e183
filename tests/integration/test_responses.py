"""POST /v1/responses in front of simulated workers: answers, events, and what is repeated."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig, until
from tests.support.response_cases import CLOCK, WEATHER, as_chat, both, prompts_of
from tests.support.response_events import named_events, whole_response
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose chat template knows tools."""
    folder = tmp_path_factory.mktemp("responses") / "tokenizer"
    return write_tokenizer_folder(folder, chat_template=TEMPLATES["hermes"])


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as opened:
        yield opened


async def test_a_whole_response(rig: Rig, client: openai.AsyncOpenAI) -> None:
    answer = await rig.respond(
        instructions="Be brief.",
        metadata={"job": "7"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        reasoning={"effort": "low"},
        parallel_tool_calls=False,
        truncation="disabled",
        include=["reasoning.encrypted_content"],
        service_tier="auto",
    )
    assert answer.headers["x-request-id"].startswith("req_")
    assert "x-ignored-params" not in answer.headers
    response = whole_response(answer.content)
    (message,) = response["output"]
    assert message["content"][0]["text"] == DEFAULT_ANSWER
    assert response["status"] == message["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]
    assert response["id"].startswith("resp_")
    assert message["id"].startswith("msg_")
    repeated = {
        "instructions": "Be brief.",
        "metadata": {"job": "7"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "reasoning": {"effort": "low", "summary": None},
        "parallel_tool_calls": False,
        "truncation": "disabled",
        "store": False,
        "background": False,
        "previous_response_id": None,
        "error": None,
        "incomplete_details": None,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "tool_choice": "auto",
        "model": "simulated",
    }
    assert {name: response[name] for name in repeated} == repeated
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert response["tandem"]["prompt_tokens"] == usage["input_tokens"]
    assert response["tandem"]["route"].startswith("pair: p0 -> d0;")
    assert response["system_fingerprint"].startswith("fp_")
    assert rig.simulation.sampling[-1].temperature == 0.5

    typed = await client.responses.create(model="simulated", input="hi")
    assert typed.output_text == DEFAULT_ANSWER
    assert typed.status == "completed"
    assert typed.usage is not None
    assert typed.usage.output_tokens_details.reasoning_tokens == 0
    assert typed.temperature == 1.0


async def test_a_streamed_response(rig: Rig, client: openai.AsyncOpenAI) -> None:
    answer = await rig.respond(stream=True, stream_options={"include_obfuscation": False})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    events = named_events(answer.content)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 3
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    last = events[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == DEFAULT_ANSWER
    assert last["tandem"]["ttft_ms"] > 0
    assert last["usage"]["output_tokens"] > 3
    assert "tandem" not in events[0]["response"]
    assert b"[DONE]" not in answer.content

    async with client.responses.stream(model="simulated", input="hi") as stream:
        seen = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == DEFAULT_ANSWER
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == (
        DEFAULT_ANSWER
    )


async def test_input_becomes_the_prompt_of_the_same_conversation(rig: Rig) -> None:
    seen = prompts_of(rig)
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Wea"}, {"type": "text", "text": "ther?"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {**call, "id": "fc_1", "status": "completed"},
        {**call, "call_id": "call_2", "name": "clock"},
        output,
        {**output, "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]},
        {"role": "developer", "content": "Be brief."},
    ]
    tools = [WEATHER, CLOCK]
    answer = await rig.respond(input=items, instructions="You are kind.", tools=tools)
    assert answer.status_code == 200
    messages = [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
                for id_, name in (("call_1", "weather"), ("call_2", "clock"))
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        {"role": "developer", "content": "Be brief."},
    ]
    assert (
        await rig.chat(messages=messages, tools=[as_chat(tool) for tool in tools])
    ).status_code == 200
    assert len(seen) == 1
    await rig.respond(input=[{"role": "user", "content": "hi"}])
    await rig.respond(input="hi")
    await rig.chat()
    assert len(seen) == 2


async def test_thinking_is_asked_of_the_template(tmp_path: Path) -> None:
    template = "{{ messages[0].content }} {{ reasoning_effort }} {{ enable_thinking }}"
    folder = write_tokenizer_folder(tmp_path / "tokenizer", chat_template=template)
    async with running_rig(folder) as rig:
        seen = prompts_of(rig)
        answer = await rig.respond(
            reasoning={"effort": "high", "summary": "auto"},
            chat_template_kwargs={"enable_thinking": False, "tools": []},
        )
        decode = rig.simulation.tokenizer.decode
        assert [decode(prompt) for prompt in seen] == ["hi high False"]
        ignored = answer.headers["x-ignored-params"]
        assert ignored == "chat_template_kwargs.tools, reasoning.summary"


async def test_text_formats_are_those_of_chat(rig: Rig, client: openai.AsyncOpenAI) -> None:
    class Point(pydantic.BaseModel):
        x: int

    rig.answer_with('{"x": 3}')
    parsed = await client.responses.parse(model="simulated", input="hi", text_format=Point)
    assert parsed.output_parsed == Point(x=3)
    schema = Point.model_json_schema() | {"additionalProperties": False}
    by_schema = {"name": "p", "schema": schema}
    formats: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"type": "json_schema", **by_schema}, {"type": "json_schema", "json_schema": by_schema}),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({"type": "text"}, {"type": "text"}),
    ]
    for flat, nested in formats:
        rig.simulation.grammars.clear()
        response = whole_response((await rig.respond(text={"format": flat})).content)
        given = {k: v for k, v in response["text"]["format"].items() if v is not None}
        assert given == flat | ({"strict": True} if "schema" in flat else {})
        await rig.chat(response_format=nested)
        assert len(rig.simulation.grammars) == 4
        assert len(set(rig.simulation.grammars)) == 1


async def test_log_probabilities(rig: Rig) -> None:
    logprobs = "message.output_text.logprobs"
    for fields, top in (
        ({"include": [logprobs]}, 0),
        ({"include": [logprobs], "top_logprobs": 2}, 2),
        ({"top_logprobs": 2}, 2),
    ):
        for response in await both(rig, **fields):
            assert response["top_logprobs"] == top
            (part,) = response["output"][0]["content"]
            assert "".join(entry["token"] for entry in part["logprobs"]) == DEFAULT_ANSWER
            assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {top}
    plain = whole_response((await rig.respond(top_logprobs=0)).content)
    assert plain["output"][0]["content"][0]["logprobs"] == []


async def test_extensions_are_those_of_chat(rig: Rig) -> None:
    answer = await rig.respond(
        seed=7, stop="answer", top_k=3, tandem={"keep_rate": 0.5, "trace": True}
    )
    response = whole_response(answer.content)
    assert response["output"][0]["content"][0]["text"] == "Hello world, the "
    assert response["status"] == "completed"
    assert "trace" in response["tandem"]
    sampling, options = rig.simulation.sampling[-1], rig.simulation.options[-1]
    assert (sampling.seed, sampling.top_k, options.keep_rate) == (7, 3, 0.5)


async def test_what_is_ignored_is_told(rig: Rig, folder: Path) -> None:
    fields: dict[str, Any] = {
        "store": True,
        "instruction": "x",
        "text": {"format": {"type": "text"}, "colour": 1},
        "reasoning": {"efort": "low"},
        "prompt_cache_options": {},
    }
    answer = await rig.respond(**fields)
    assert whole_response(answer.content)["store"] is False
    told = set(answer.headers["x-ignored-params"].split(", "))
    assert told == {"store", "instruction", "text.colour", "reasoning.efort"}
    hints = set(answer.headers["x-param-hint"].split(", "))
    assert hints == {"instruction -> instructions", "reasoning.efort -> reasoning.effort"}
    async with running_rig(folder, strict_params=True) as strict:
        refused = await strict.respond(store=True)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "store"
        assert (await strict.respond(store=False)).status_code == 200


async def test_requests_are_counted_under_their_endpoint(rig: Rig) -> None:
    await rig.respond()
    await rig.respond(stream=True)
    await rig.respond(input=[])

    async def counted() -> bool:
        lines = (await rig.http.get("/metrics")).text.splitlines()
        ours = [line for line in lines if 'endpoint="/v1/responses"' in line]
        counts = [line for line in ours if line.startswith("tandem_requests_total")]
        return sorted(line.rpartition(" ")[2] for line in counts) == ["1.0", "2.0"]

    await until(counted)
