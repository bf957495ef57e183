"""Several answers to a request: n, lists of prompts, and both."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import openai
import pytest

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import HandoffError, InvalidRequestError, UnavailableError
from shared.rpc.status import error_from_rpc
from tests.support.gateway_rig import Rig, data_frames, running_rig, until
from tests.support.simulated_workers import FailEvent

TEXTS = ["One.", "Two words here, and then a few more.", "Ünïcode 🎉 three"]
LONG: dict[str, Any] = {"max_tokens": 64}
SEVERAL: dict[str, Any] = {**LONG, "prompt": ["first", "second", [5, 6]]}
GREEDY = common_pb2.SamplingParams(temperature=0, logprobs=0)


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder, prefills=2, decodes=2, balancer="round_robin") as started:
        tokenizer = started.simulation.tokenizer
        end = tokenizer.eos_ids[0]
        started.simulation.answers = [[*tokenizer.encode(text), end] for text in TEXTS]
        yield started


def texts_of(frames: list[Any]) -> dict[int, str]:
    """Streamed text of each choice, in the order of their first appearance."""
    texts: dict[int, str] = {}
    for frame in frames:
        for choice in frame["choices"] if isinstance(frame, dict) else ():
            text = choice.get("text", choice.get("delta", {}).get("content")) or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


def calls(rig: Rig, method: str) -> int:
    return sum(call.method == method for call in rig.simulation.calls)


async def test_n_answers_from_one_prefill(rig: Rig) -> None:
    one = (await rig.chat(max_tokens=1)).json()["usage"]["prompt_tokens"]
    rig.simulation.calls.clear()
    body = (await rig.chat(n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == TEXTS
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    assert [calls(rig, method) for method in ("Prefill", "Reserve", "Decode")] == [1, 1, 3]
    usage = body["usage"]
    assert usage["prompt_tokens"] == one, "the prompt counts once"
    assert usage["completion_tokens"] == sum(len(ids) for ids in rig.simulation.answers)
    tandem = body["tandem"]
    steps = usage["completion_tokens"] - 3
    assert (tandem["attended"], tandem["dense"]) == (100 * steps, 400 * steps)


async def test_streamed_choices_interleave_and_appear_in_order(rig: Rig) -> None:
    rig.simulation.token_delay_s = 0.002
    response = await rig.chat(n=3, stream=True, stream_options={"include_usage": True})
    frames = data_frames(response.content)
    assert frames[-1] == "[DONE]"
    texts = texts_of(frames)
    assert list(texts) == [0, 1, 2]
    assert list(texts.values()) == TEXTS
    chunks = [f for f in frames if isinstance(f, dict) and f["choices"]]
    for index in range(3):
        own = [f["choices"][0] for f in chunks if f["choices"][0]["index"] == index]
        assert [c["delta"].get("role") for c in own].count("assistant") == 1
        assert own[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in own].count("stop") == 1
        assert own[-1]["finish_reason"] == "stop"
        assert own[-1]["delta"] == {}
    order = [f["choices"][0]["index"] for f in chunks]
    assert order != sorted(order), "choices grow side by side"
    last = frames[-2]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == sum(len(i) for i in rig.simulation.answers)
    assert last["tandem"]["prompt_tokens"] == last["usage"]["prompt_tokens"]


async def test_the_openai_stream_helper_takes_n(rig: Rig) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(
            model="simulated", messages=[{"role": "user", "content": "hi"}], n=3
        ) as stream,
    ):
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == TEXTS


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_times_n_are_numbered_prompt_by_prompt(rig: Rig, stream: bool) -> None:
    response = await rig.complete(**SEVERAL, n=2, stream=stream)
    if stream:
        texts = texts_of(data_frames(response.content))
        assert list(texts) == list(range(6))
        assert list(texts.values()) == TEXTS[:2] * 3
        return
    body = response.json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"] for choice in body["choices"]] == TEXTS[:2] * 3
    singles = [
        (await rig.complete(prompt=prompt)).json()["usage"]["prompt_tokens"]
        for prompt in SEVERAL["prompt"]
    ]
    assert body["usage"]["prompt_tokens"] == sum(singles)


async def test_running_usage_counts_every_choice(rig: Rig) -> None:
    response = await rig.complete(
        **LONG,
        n=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [f["usage"]["completion_tokens"] for f in data_frames(response.content)[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == sum(len(ids) for ids in rig.simulation.answers)


async def test_logprobs_belong_to_their_choice(rig: Rig) -> None:
    body = (await rig.complete(**LONG, n=3, logprobs=0)).json()
    for choice, text in zip(body["choices"], TEXTS, strict=True):
        entry = choice["logprobs"]
        assert len(entry["tokens"]) == len(entry["token_logprobs"]) == len(entry["text_offset"])
        assert entry["text_offset"][0] == 0
        assert choice["text"] == text


async def test_a_choice_that_ends_with_its_first_token_leaves_the_others_alone(rig: Rig) -> None:
    rig.simulation.answers[1] = [rig.simulation.tokenizer.eos_ids[0]]
    body = (await rig.chat(n=3)).json()
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert contents == [TEXTS[0], "", TEXTS[2]]


async def test_all_choices_may_end_with_their_first_tokens(rig: Rig) -> None:
    body = (await rig.chat(n=3, max_tokens=1)).json()
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 3
    assert calls(rig, "Decode") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_goes_on_from_every_first_token(rig: Rig, stream: bool) -> None:
    rig.prefills[0].plan.at("transfer", FailEvent(HandoffError("checksum differs")))
    rig.decodes[0].plan.at("accepted", UnavailableError("stopping"))
    response = await rig.chat(n=3, stream=stream)
    if stream:
        assert list(texts_of(data_frames(response.content)).values()) == TEXTS
    else:
        contents = [choice["message"]["content"] for choice in response.json()["choices"]]
        assert contents == TEXTS
    assert calls(rig, "Prefill") >= 2


async def test_a_branch_that_fails_later_ends_the_answer_with_one_error(rig: Rig) -> None:
    for decode in rig.decodes:
        decode.plan.at("token:2", FailEvent(HandoffError("pages were lost")))
    frames = data_frames((await rig.chat(n=3, stream=True)).content)
    assert frames[-1]["error"]["code"] == "kv_transfer_failed"
    assert sum("error" in frame for frame in frames) == 1
    await until(lambda: nothing_runs(rig))


async def test_a_client_that_leaves_ends_every_branch(rig: Rig) -> None:
    rig.simulation.token_delay_s = 0.05
    async with rig.http.stream(
        "POST",
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hi"}], "n": 3, "stream": True},
    ) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                break
    await until(lambda: nothing_runs(rig))
    assert calls(rig, "closed") >= 1


async def nothing_runs(rig: Rig) -> bool:
    """Whether the gateway and the workers are at rest."""
    metrics = (await rig.http.get("/metrics")).text
    running = [worker.running for worker in (*rig.prefills, *rig.decodes)]
    return "tandem_requests_in_flight 0.0" in metrics and not any(running)


async def test_more_than_the_operator_allows_is_refused(folder: Path) -> None:
    async with running_rig(folder, max_choices=2) as rig:
        assert (await rig.chat(n=2)).status_code == 200
        refused: httpx.Response = await rig.chat(n=3)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "n"
        assert "max_choices" in refused.json()["error"]["message"]
        async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in stub.Generate(
                    inference_pb2.GenerateRequest(text="hi", num_answers=3)
                ):
                    pass
        error = error_from_rpc(raised.value)
        assert isinstance(error, InvalidRequestError)
        assert error.param == "num_answers"


async def test_grpc_names_the_answer_of_every_event(rig: Rig) -> None:
    request = inference_pb2.GenerateRequest(text="hi", sampling=GREEDY, num_answers=3)
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        events = [event async for event in stub.Generate(request)]
    texts = ["", "", ""]
    for event in events:
        texts[event.delta.answer] += event.delta.text
    assert texts == TEXTS
    ends = [e.finished for e in events if e.WhichOneof("event") == "finished"]
    assert sorted(end.answer for end in ends) == [0, 1, 2]
    assert [end.HasField("report") for end in ends] == [False, False, True]
    for end in ends:
        assert end.usage.completion_tokens == len(rig.simulation.answers[end.answer])
