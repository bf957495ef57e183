"""n answers over real workers: one prefill, branches that share its pages, the draws of each."""

from typing import Any

import pytest

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.support.decode_server import assert_idle
from tests.support.full_stack import Stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "A prompt of plain text that fills a few pages. " * 5
BODY: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": 24,
    "temperature": 1.0,
    "seed": 5,
    "ignore_eos": True,
}


async def texts(stack: Stack, **fields: Any) -> list[str]:
    response = await stack.http.post("/v1/completions", json=BODY | fields)
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


async def test_choices_differ_and_repeat_with_the_seed(stack: Stack) -> None:
    three = await texts(stack, n=3)
    assert len(set(three)) == 3
    assert await texts(stack, n=3) == three
    assert await texts(stack) == three[:1], "the first choice is the answer that n=1 gives"
    assert await texts(stack, n=2) == three[:2], "a choice does not depend on those beside it"
    await until(lambda: stack.decode.core.worker.table.idle)
    assert_idle(stack.decode)


async def test_greedy_choices_are_equal(stack: Stack) -> None:
    assert len(set(await texts(stack, n=4, temperature=0))) == 1


@pytest.mark.parametrize("mode", ["full", "prune", "sparse", "both"])
async def test_every_mode_serves_branches(stack: Stack, mode: str) -> None:
    two = await texts(stack, n=2, tandem={"mode": mode, "min_keep": 8, "keep_rate": 0.5})
    assert len(set(two)) == 2
    assert await texts(stack, tandem={"mode": mode, "min_keep": 8, "keep_rate": 0.5}) == two[:1]


async def test_penalties_and_logprobs_by_branch(stack: Stack) -> None:
    response = await stack.http.post(
        "/v1/completions", json=BODY | {"n": 2, "logprobs": 2, "repetition_penalty": 1.2}
    )
    choices = response.json()["choices"]
    for choice in choices:
        assert len(choice["logprobs"]["token_logprobs"]) == 24
        assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"])
    assert choices[0]["logprobs"] != choices[1]["logprobs"]


async def test_grpc_gives_the_same_answers(stack: Stack) -> None:
    request = inference_pb2.GenerateRequest(
        text=PROMPT,
        sampling=common_pb2.SamplingParams(
            temperature=1.0, top_p=1.0, seed=5, repetition_penalty=1
        ),
        stop=common_pb2.StopConditions(max_tokens=24),
        ignore_eos=True,
        num_answers=3,
    )
    stub = inference_pb2_grpc.InferenceServiceStub(stack.channel)
    answers = ["", "", ""]
    async for event in stub.Generate(request):
        answers[event.delta.answer] += event.delta.text
    assert answers == await texts(stack, n=3)
    await until(lambda: stack.decode.core.worker.table.idle)


async def test_a_client_that_leaves_frees_all_pages(stack: Stack) -> None:
    async with stack.http.stream(
        "POST", "/v1/completions", json=BODY | {"n": 3, "max_tokens": 300, "stream": True}
    ) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                break
    await until(lambda: stack.decode.core.worker.table.idle)
    assert_idle(stack.decode)
