"""Every refusal and failure of the table: curl's view of it, and which exception clients raise.

The classes are what programs catch: agents shorten the history on a context overflow, queues wait
on a rate limit. LiteLLM and LangChain sort by status and by the wording of the message.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import langchain_core.exceptions as langchain
import openai
import pytest
import structlog.testing

from tests.support.curl import curl
from tests.support.langchain_client import added_up, open_langchain
from tests.support.litellm_client import QUIET, LiteLLM, clean_litellm, lite
from tests.support.refusals import REFUSALS, Refusal, Refusing, refusing


@dataclass(frozen=True)
class Raised:
    """Exceptions of the three."""

    openai: type[Exception]
    langchain: type[Exception]
    litellm: type[Exception]


RAISED = {
    "range": Raised(
        openai.BadRequestError, langchain.ModelInvalidRequestError, lite.BadRequestError
    ),
    "answer too long": Raised(
        openai.BadRequestError, langchain.ContextOverflowError, lite.ContextWindowExceededError
    ),
    "prompt too long": Raised(
        openai.BadRequestError, langchain.ContextOverflowError, lite.ContextWindowExceededError
    ),
    "schema": Raised(
        openai.BadRequestError, langchain.ModelInvalidRequestError, lite.BadRequestError
    ),
    "tools": Raised(
        openai.BadRequestError, langchain.ModelInvalidRequestError, lite.BadRequestError
    ),
    "body": Raised(openai.APIStatusError, openai.APIStatusError, lite.APIError),
    "key": Raised(
        openai.AuthenticationError,
        langchain.ModelAuthenticationError,
        lite.AuthenticationError,
    ),
    "model": Raised(openai.NotFoundError, langchain.ModelNotFoundError, lite.NotFoundError),
    "limit of one request": Raised(
        openai.RateLimitError, langchain.ModelRateLimitError, lite.RateLimitError
    ),
    "queue": Raised(openai.RateLimitError, langchain.ModelRateLimitError, lite.RateLimitError),
    "defect": Raised(openai.InternalServerError, langchain.ModelAPIError, lite.InternalServerError),
    "transfer": Raised(openai.InternalServerError, langchain.ModelAPIError, lite.BadGatewayError),
    "no worker": Raised(
        openai.InternalServerError, langchain.ModelAPIError, lite.ServiceUnavailableError
    ),
    "deadline": Raised(openai.InternalServerError, langchain.ModelAPIError, lite.Timeout),
}
OVERFLOWS = (langchain.ContextOverflowError, lite.ContextWindowExceededError)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
@QUIET
async def test_every_client_raises_what_programs_catch(
    refusal: Refusal, folder: Path, tmp_path: Path
) -> None:
    # A defect is logged with its stack, which takes a terminal's renderer a second.
    with structlog.testing.capture_logs():
        async with refusing(refusal, folder=folder, scratch=tmp_path) as gate:
            for stream in (False, True):
                await _on_the_wire(refusal, gate, stream=stream)
            await _to_openai_python(refusal, gate)
            await _to_langchain(refusal, gate)
            async with clean_litellm():
                for stream in (False, True):
                    await _to_litellm(refusal, gate, stream=stream)


async def _on_the_wire(refusal: Refusal, gate: Refusing, *, stream: bool) -> None:
    body = {
        "model": "simulated",
        "messages": refusal.messages,
        "stream": stream,
        **refusal.fields,
    }
    answer = await curl(
        f"{gate.url}/chat/completions",
        json_body=body,
        headers={"authorization": f"Bearer {gate.api_key}"},
    )
    assert answer.status == refusal.status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (refusal.kind, refusal.code)
    waits = refusal.status in {429, 503} and refusal.retried
    assert ("retry-after" in answer.headers, "retry-after-ms" in answer.headers) == (waits, waits)
    assert (answer.headers.get("x-should-retry") == "false") == (
        refusal.name in {"deadline", "limit of one request"}
    )


async def _to_openai_python(refusal: Refusal, gate: Refusing) -> None:
    fields: dict[str, Any] = {"model": "simulated", **refusal.fields}
    messages: Any = refusal.messages
    async with openai.AsyncOpenAI(base_url=gate.url, api_key=gate.api_key, max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(messages=messages, stream=stream, **fields)
            error = caught.value
            assert isinstance(error, RAISED[refusal.name].openai)
            assert error.status_code == refusal.status
            assert (error.code, error.type) == (refusal.code, refusal.kind)
            assert error.request_id == error.response.headers["x-request-id"]


async def _to_langchain(refusal: Refusal, gate: Refusing) -> None:
    messages: Any = list(refusal.messages)
    expected = RAISED[refusal.name].langchain
    async with open_langchain(gate.url, model="simulated", api_key=gate.api_key) as client:
        bound = client.chat().bind(**refusal.fields)
        with pytest.raises(expected) as caught:
            await bound.ainvoke(messages)
        with pytest.raises(expected):
            await added_up(bound, messages)
    assert isinstance(caught.value, OVERFLOWS) == (refusal.code == "context_length_exceeded")


async def _to_litellm(refusal: Refusal, gate: Refusing, *, stream: bool) -> None:
    fields = dict(refusal.fields)
    client = LiteLLM(gate.url, model=fields.pop("model", "simulated"), api_key=gate.api_key)
    with pytest.raises(RAISED[refusal.name].litellm) as caught:
        await client.chat(messages=list(refusal.messages), stream=stream, **fields)
    error: Any = caught.value
    assert isinstance(error, OVERFLOWS) == (refusal.code == "context_length_exceeded")
    assert error.status_code == refusal.status


def test_no_row_is_forgotten() -> None:
    assert set(RAISED) == {refusal.name for refusal in REFUSALS}
