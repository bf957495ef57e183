"""Fields that OpenAI's clients send beside the question: taken, and not named as ignored."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: Any = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}]}

HARMLESS: dict[str, Any] = {
    "metadata": {"team": "a"},
    "user": "me",
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "abc",
    "prompt_cache_key": "k",
    "verbosity": "low",
    "reasoning_effort": "low",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "n": 1,
    "stop": None,
    "logit_bias": {},
    "modalities": ["text"],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as opened:
        yield opened


@pytest.mark.parametrize("name", HARMLESS)
async def test_harmless_fields_are_taken(client: openai.AsyncOpenAI, name: str) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASKED, **{name: HARMLESS[name]})
    assert "x-ignored-params" not in raw.headers
    answer = raw.parse()
    assert answer.choices[0].message.content == DEFAULT_ANSWER


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"include_usage": False},
        {"include_usage": True, "include_obfuscation": True},
        {"include_usage": True, "continuous_usage_stats": True},
    ],
)
async def test_stream_options(client: openai.AsyncOpenAI, options: Any) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        **ASKED, stream=True, stream_options=options
    )
    assert "x-ignored-params" not in raw.headers
    chunks: list[Any] = [chunk async for chunk in raw.parse()]
    told = [chunk for chunk in chunks if chunk.usage]
    assert bool(told) == bool(options.get("include_usage"))
    if told:
        assert told[-1] is chunks[-1]
        assert (len(told) > 1) == ("continuous_usage_stats" in options)


async def test_options_without_a_stream_are_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**ASKED, stream_options={"include_usage": True})
    assert caught.value.param == "stream_options"


async def test_the_newer_limit_wins(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASKED, max_tokens=2, max_completion_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.choices[0].finish_reason == "length"


async def test_usage_tells_the_whole_prompt(client: openai.AsyncOpenAI) -> None:
    """Pruned or not; what was kept is in the extension."""
    answer: Any = await client.chat.completions.create(**ASKED)
    assert answer.usage.prompt_tokens == answer.tandem["prompt_tokens"]
    assert answer.tandem["kept_tokens"] < answer.usage.prompt_tokens


async def test_a_fingerprint_shows_a_changed_budget(client: openai.AsyncOpenAI) -> None:
    prints = {
        (
            await client.chat.completions.create(**ASKED, seed=1, extra_body={"tandem": options})
        ).system_fingerprint
        for options in ({}, {"keep_rate": 0.3}, {"page_budget": 9}, {"mode": "full"})
    }
    assert len(prints) == 4
