"""What clients do after a failure: try again where we say so and only there; how long they wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ModelTimeoutError

from shared.errors import DeadlineError, HandoffError, OverloadedError
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig
from tests.support.langchain_client import open_langchain
from tests.support.litellm_client import QUIET, LiteLLM, clean_litellm, lite
from tests.support.simulated_workers import FailEvent

CLIENTS = ("openai-python", "langchain", "litellm")

FULL = OverloadedError("the queue is full", retry_after_s=0.01)
LATE = DeadlineError("too late")
LOST = FailEvent(HandoffError("pages lost"))

pytestmark = QUIET


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder) as started:
        yield started


async def ask(client: str, rig: Rig, **settings: Any) -> str:
    """The text of one streamed answer; a client may try twice more unless told otherwise."""
    given = {"max_retries": 2} | settings
    url, pieces = f"{rig.url}/v1", []
    messages: Any = [{"role": "user", "content": "hi"}]
    if client == "openai-python":
        async with openai.AsyncOpenAI(base_url=url, api_key="none", **given) as opened:
            stream = await opened.chat.completions.create(
                model="simulated", messages=messages, stream=True
            )
            pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
    elif client == "langchain":
        async with open_langchain(url, model="simulated") as made:
            pieces = [str(piece.content) async for piece in made.chat(**given).astream("hi")]
    else:
        async with clean_litellm():
            stream = await LiteLLM(url, model="simulated").chat(stream=True, **given)
            pieces = [c.choices[0].delta.content or "" async for c in stream]
    return "".join(pieces)


def prefills(rig: Rig) -> int:
    return rig.methods(rig.prefills[0]).count("Prefill")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_full_queue_is_tried_again_when_it_says(rig: Rig, client: str) -> None:
    rig.prefills[0].plan.at("call", FULL, times=2)
    assert await ask(client, rig) == DEFAULT_ANSWER
    assert prefills(rig) == 3


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_deadline_is_not_tried_again(rig: Rig, client: str) -> None:
    rig.prefills[0].plan.at("call", LATE, times=9)
    with pytest.raises(openai.APIError) as caught:
        await ask(client, rig)
    error: Any = caught.value
    assert error.status_code == 504
    assert prefills(rig) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_stream_that_began_is_not_tried_again(rig: Rig, client: str) -> None:
    rig.decodes[0].plan.at("token:3", LOST, times=9)
    with pytest.raises(openai.APIError, match="pages lost") as caught:
        await ask(client, rig)
    if client == "litellm":  # it offers what came so far to its own fallbacks
        assert isinstance(caught.value, lite.MidStreamFallbackError)
        assert caught.value.generated_content
        assert DEFAULT_ANSWER.startswith(caught.value.generated_content)
    else:
        assert caught.value.code == "kv_transfer_failed"
    assert prefills(rig) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_has_waited_enough_frees_the_workers(rig: Rig, client: str) -> None:
    assert await ask(client, rig) == DEFAULT_ANSWER  # its late imports take no part in the wait
    rig.prefills[0].plan.at("first_token", asyncio.Event())
    expected: dict[str, type[Exception]] = {
        "openai-python": openai.APITimeoutError,
        "langchain": ModelTimeoutError,
        "litellm": lite.Timeout,
    }
    with pytest.raises(expected[client]):
        await ask(client, rig, timeout=1.0, max_retries=0)
    await rig.simulation.seen("p0", "Cancel")
    assert prefills(rig) == 2
    assert await ask(client, rig) == DEFAULT_ANSWER


@pytest.mark.slow
async def test_a_comment_holds_a_client_that_would_have_left(folder: Path) -> None:
    """Clients count the silence, so comments carry them over a prefill longer than their limit."""
    async with running_rig(folder, keepalive_s=0.1) as rig:
        gate = asyncio.Event()
        rig.prefills[0].plan.at("first_token", gate)
        asked = asyncio.create_task(ask("openai-python", rig, timeout=3.0, max_retries=0))
        await rig.simulation.seen("p0", "Prefill")
        await asyncio.sleep(4.0)
        assert not asked.done()
        gate.set()
        assert await asked == DEFAULT_ANSWER
