"""The Python clients before a real pair: the same tokens as over REST, and what the methods did."""

import asyncio
import json

import pytest

from gateway.sdk import AsyncTandemClient, FinishReason, Generation, TandemClient
from tests.support.full_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "the quick brown fox jumps over the lazy dog " * 12


async def test_both_clients_and_rest_give_the_same_answer(stack: Stack) -> None:
    address = stack.gateway.grpc_address

    def by_thread() -> Generation:
        with TandemClient(address) as client:
            return client.generate(
                PROMPT, max_tokens=24, temperature=0.0, logprobs=1, mode="both", keep_rate=0.5,
                page_budget=4, recency_pages=2, trace=True,
            )  # fmt: skip

    async with AsyncTandemClient(address) as client:
        by_task = await client.generate(
            PROMPT, max_tokens=24, temperature=0.0, logprobs=1, mode="both", keep_rate=0.5,
            page_budget=4, recency_pages=2, trace=True,
        )  # fmt: skip
    threaded = await asyncio.to_thread(by_thread)
    rest = await stack.http.post(
        "/v1/completions",
        json={
            "prompt": PROMPT,
            "max_tokens": 24,
            "temperature": 0,
            "tandem": {"mode": "both", "keep_rate": 0.5, "page_budget": 4, "recency_pages": 2},
        },
    )
    (choice,) = rest.json()["choices"]
    assert by_task.text == threaded.text == choice["text"]
    assert by_task.answers[0].token_ids == threaded.answers[0].token_ids
    assert all(token.logprob is not None for token in by_task.answers[0].tokens)
    report = by_task.report
    assert 0 < report.kept_tokens < report.prompt_tokens == by_task.prompt_tokens
    assert 0 < report.attended < report.dense
    assert report.pages is not None
    assert (report.pages.policy, report.pages.page_budget) == ("delta", 4)
    assert report.trace is not None
    assert report.trace.prompt is not None
    assert report.trace.pages is not None
    assert sum(layout.kept_tokens for layout in report.trace.prompt.layouts) > 0


async def test_several_answers_that_are_json(stack: Stack) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    async with AsyncTandemClient(stack.gateway.grpc_address) as client:
        found = await client.generate("hi", n=2, seed=3, max_tokens=64, response_format=schema)
    assert len(found.answers) == 2
    for answer in found.answers:
        assert answer.reason is FinishReason.STOP
        assert json.loads(answer.text)["ok"] in (True, False)
