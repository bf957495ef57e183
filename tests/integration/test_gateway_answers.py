"""The REST API in front of simulated workers: answers, streams, parameters."""

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.gateway_rig import (
    DEFAULT_ANSWER,
    Rig,
    data_frames,
    joined_text,
    until,
)


async def test_chat_answer(rig: Rig) -> None:
    response = await rig.chat()
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": DEFAULT_ANSWER,
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    tandem = body["tandem"]
    assert tandem["transport"] == "grpc"
    assert tandem["kv_bytes"] == 1000 * usage["prompt_tokens"]
    assert tandem["attended"] * 4 == tandem["dense"]
    assert tandem["route"].startswith("pair: p0 -> d0; least_loaded; pruned: profile")
    assert {"prefill_queue", "prefill", "transfer", "decode"} <= set(tandem["phases_ms"])
    assert response.headers["x-request-id"].startswith("req_")
    assert body["system_fingerprint"].startswith("fp_")


async def test_stream_is_to_the_letter(rig: Rig) -> None:
    response = await rig.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    frames = data_frames(response.content)
    assert frames[-1] == "[DONE]"
    chunks = frames[:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert sum("role" in c["delta"] for chunk in chunks for c in chunk["choices"]) == 1
    assert joined_text(chunks) == DEFAULT_ANSWER
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert chunks[-1]["tandem"]["ttft_ms"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for key in ("id", "object", "created", "model"):
        assert len({chunk[key] for chunk in chunks}) == 1


async def test_stream_without_usage(rig: Rig) -> None:
    frames = data_frames((await rig.chat(stream=True, stream_options={})).content)
    assert all("usage" not in frame and frame["choices"] for frame in frames[:-1])


async def test_continuous_usage(rig: Rig) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    frames = data_frames((await rig.complete(stream=True, stream_options=options)).content)
    counts = [frame["usage"]["completion_tokens"] for frame in frames[:-1]]
    assert counts == sorted(counts)
    assert counts[0] == 1


async def test_openai_chat_clients(rig: Rig, client: openai.AsyncOpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    answer = await client.chat.completions.create(model="simulated", messages=messages)
    assert answer.choices[0].message.content == DEFAULT_ANSWER
    stream = await client.chat.completions.create(
        model="simulated",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == DEFAULT_ANSWER
    assert chunks[-1].usage is not None
    async with client.chat.completions.stream(
        model="simulated", messages=messages, stream_options={"include_usage": True}
    ) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.content == DEFAULT_ANSWER
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None


async def test_openai_completions_and_models(rig: Rig, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="simulated", prompt="hi", max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    stream = await client.completions.create(
        model="simulated", prompt="hi", max_tokens=100, stream=True
    )
    assert "".join([c.choices[0].text async for c in stream]) == DEFAULT_ANSWER
    models = await client.models.list()
    assert [model.id for model in models.data] == ["simulated"]
    assert (await client.models.retrieve("simulated")).id == "simulated"


async def test_prompt_forms(rig: Rig) -> None:
    ids = rig.simulation.tokenizer.encode("hi there")
    one = (await rig.complete(prompt=ids)).json()
    assert one["usage"]["prompt_tokens"] == len(ids)
    several = (await rig.complete(prompt=["a", "bc", ids], max_tokens=2)).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert several["usage"]["completion_tokens"] == 6
    assert several["usage"]["prompt_tokens"] == 3 + len(ids)


async def test_default_max_tokens_of_completions_is_16(rig: Rig) -> None:
    body = (await rig.complete()).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


async def test_sampling_reaches_the_workers(rig: Rig) -> None:
    await rig.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        seed=-1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=2,
    )
    sampling = rig.simulation.sampling[-1]
    assert (sampling.top_k, sampling.seed) == (0, 2**64 - 1)
    assert sampling.logit_bias == ((5, -100.0),)
    assert sampling.logprobs == 2
    await rig.chat()
    await rig.chat()
    drawn = {params.seed for params in rig.simulation.sampling[-2:]}
    assert len(drawn) == 2


async def test_chat_logprobs(rig: Rig) -> None:
    body = (await rig.chat(logprobs=True, top_logprobs=2)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == DEFAULT_ANSWER
    assert len(entries[0]["top_logprobs"]) == 2
    frames = data_frames((await rig.chat(logprobs=True, stream=True)).content)
    streamed = [
        entry
        for frame in frames[:-1]
        for choice in frame["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


async def test_completion_logprobs(rig: Rig) -> None:
    body = (await rig.complete(logprobs=1, max_tokens=3)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] == "Hello"
    assert logprobs["text_offset"][:2] == [0, 5]
    assert len(logprobs["top_logprobs"]) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "text", "match"),
    [
        ({"stop": "answer"}, "Hello world, the ", "answer"),
        ({"stop": ["zzz", " the"]}, "Hello world,", " the"),
        (
            {"stop": "answer", "include_stop_str_in_output": True},
            "Hello world, the answer",
            "answer",
        ),
        ({"stop": "Hello"}, "", "Hello"),
        ({"stop": "Hello", "min_tokens": 2}, DEFAULT_ANSWER, None),
    ],
)
async def test_stop_strings(
    rig: Rig, fields: dict[str, object], text: str, match: str | None, stream: bool
) -> None:
    response = await rig.chat(stream=stream, **fields)
    if stream:
        frames = data_frames(response.content)
        assert joined_text(frames) == text
        choice = frames[-2]["choices"][0]
    else:
        choice = response.json()["choices"][0]
        assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == match


async def test_stop_ids(rig: Rig) -> None:
    world = rig.simulation.tokenizer.encode(" world")[0]
    choice = (await rig.chat(stop_token_ids=[world])).json()["choices"][0]
    assert choice["message"]["content"] == "Hello"
    assert choice["stop_reason"] == world
    ignoring = (await rig.chat(ignore_eos=True, max_tokens=64)).json()
    assert ignoring["usage"]["completion_tokens"] == 64
    assert ignoring["choices"][0]["finish_reason"] == "length"


async def test_split_characters_are_never_cut(rig: Rig) -> None:
    text = "naïve 漢字 🤖👩‍🚀 end"
    rig.answer_with(text)
    raw = (await rig.chat(stream=True)).content
    assert joined_text(data_frames(raw)) == text
    assert "\ufffd" not in raw.decode()


async def test_one_token_answer_frees_the_pair(rig: Rig) -> None:
    body = (await rig.chat(max_tokens=1)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 1
    assert body["tandem"]["tokens_per_s"] == 0
    await rig.simulation.seen("p0", "Cancel")
    await rig.simulation.seen("d0", "Abort")


async def test_release_follows_decode(rig: Rig) -> None:
    await rig.chat()
    await rig.simulation.seen("p0", "Release")
    assert not {"Cancel", "closed"} & set(rig.methods(rig.prefills[0]))
    assert rig.methods(rig.decodes[0]) == ["Reserve", "Decode"]


async def test_roles_and_content_forms(rig: Rig) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c"},
    ]
    response = await rig.chat(messages=messages)
    assert response.status_code == 200
    expected = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = rig.simulation.tokenizer.encode(expected, add_special_tokens=False)
    assert response.json()["usage"]["prompt_tokens"] == len(tokens)


async def test_request_id_is_echoed(rig: Rig) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-request-id": "mine-1"}
    response = await rig.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["x-request-id"] == "mine-1"
    assert rig.simulation.calls[-1].handoff_id.startswith("mine-1-")
    odd = {"x-request-id": "sp ace"}
    response = await rig.http.post("/v1/chat/completions", json=body, headers=odd)
    assert response.headers["x-request-id"].startswith("req_")


async def test_fingerprint_changes_with_options(rig: Rig) -> None:
    plain = (await rig.chat()).json()["system_fingerprint"]
    again = (await rig.chat()).json()["system_fingerprint"]
    sparse = (await rig.chat(tandem={"mode": "sparse", "page_budget": 8})).json()
    assert plain == again != sparse["system_fingerprint"]


async def test_fingerprint_changes_with_the_workers_profile(rig: Rig) -> None:
    plain = (await rig.chat()).json()["system_fingerprint"]
    rig.decodes[0].methods_hash = "another budget"

    async def changed() -> bool:
        return bool((await rig.chat()).json()["system_fingerprint"] != plain)

    await until(changed)


async def test_harmless_fields(rig: Rig) -> None:
    response = await rig.chat(
        n=1,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        reasoning_effort="low",
    )
    assert response.status_code == 200
    assert "x-ignored-params" not in response.headers


async def test_unknown_fields_are_named(rig: Rig) -> None:
    response = await rig.chat(temprature=1, frobnicate=2, tandem={"keep_rat": 1}, **{"bad\nkey": 1})
    assert response.status_code == 200
    ignored = response.headers["x-ignored-params"].split(", ")
    assert ignored == ["temprature", "frobnicate", "bad?key", "tandem.keep_rat"]
    hints = response.headers["x-param-hint"]
    assert "temprature -> temperature" in hints
    assert "tandem.keep_rat -> tandem.keep_rate" in hints
