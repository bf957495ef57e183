"""curl in front of the real pair, and of workers that wait: headers, frames, bytes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.contract_cases import MESSAGES, Place
from tests.support.curl import curl, curl_stream
from tests.support.full_stack import Stack
from tests.support.gateway_rig import data_frames, joined_text, running_rig

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY: dict[str, Any] = {
    "model": "tiny",
    "messages": MESSAGES,
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 20,
}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def test_headers_and_frames(stack: Stack) -> None:
    url = f"{stack.url}/chat/completions"
    whole = await curl(url, json_body=GREEDY, options=("--compressed",))
    assert whole.status == 200
    assert whole.headers["content-type"] == "application/json"
    assert int(whole.headers["content-length"]) == len(whole.body)
    body = whole.json()
    answer = await curl(
        url,
        json_body=GREEDY | STREAMED,
        headers={"x-request-id": "mine-1"},
        options=("--compressed",),  # offers gzip, which a stream must not take
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"] == "mine-1"
    assert not {"content-encoding", "content-length"} & set(answer.headers)
    *chunks, done = data_frames(answer.body)
    assert done == "[DONE]"
    assert joined_text(chunks) == body["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == body["usage"]


async def test_every_data_line_is_strict_json(stack: Stack) -> None:
    """Improbable tokens are the place for infinities: a bias of -100 makes some."""
    banned = {str(token): -100 for token in range(0, 512, 2)}
    for path, fields in (
        ("chat/completions", GREEDY | {"logit_bias": banned, "temperature": 1, "seed": 1}),
        ("chat/completions", GREEDY | {"n": 2}),
        (
            "completions",
            {"prompt": ["The fox", "x"], "logprobs": 5, "max_tokens": 9, "logit_bias": banned},
        ),
    ):
        answer = await curl(f"{stack.url}/{path}", json_body={"model": "tiny"} | fields | STREAMED)
        frames = data_frames(answer.body)
        assert frames[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_shape_is_kept(stack: Stack, stream: bool) -> None:
    definition = {"name": "place", "schema": Place.model_json_schema()}
    body = {
        "model": "tiny",
        "messages": MESSAGES,
        "seed": 3,
        "max_tokens": 100,
        "stream": stream,
        "response_format": {"type": "json_schema", "json_schema": definition},
    }
    answer = await curl(f"{stack.url}/chat/completions", json_body=body)
    if stream:
        text = joined_text(data_frames(answer.body))
    else:
        text = answer.json()["choices"][0]["message"]["content"]
    Place.model_validate_json(text)


async def test_a_stream_comes_piece_by_piece(folder: Path) -> None:
    """`-N` shows each token while the next one is still being made."""
    async with running_rig(folder) as rig:
        gates = [asyncio.Event() for _ in range(3)]
        for number, gate in enumerate(gates, start=1):
            rig.decodes[0].plan.at(f"token:{number}", gate)
        body = {"messages": MESSAGES, "stream": True}
        async with curl_stream(f"{rig.url}/v1/chat/completions", json_body=body) as process:
            assert process.stdout is not None
            seen = [await _frame(process.stdout), await _frame(process.stdout)]
            for gate in gates:
                gate.set()
                seen.append(await _frame(process.stdout))
            rest = await process.stdout.read()
        assert joined_text(data_frames(b"".join(seen))) == "Hello world, the"
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_curl_that_is_stopped_frees_both_workers(folder: Path) -> None:
    async with running_rig(folder) as rig:
        rig.decodes[0].plan.at("token:2", asyncio.Event())
        body = {"messages": MESSAGES, "stream": True}
        async with curl_stream(f"{rig.url}/v1/chat/completions", json_body=body) as process:
            assert process.stdout is not None
            for _ in range(3):  # the role, the token of prefill, the first of decode
                await _frame(process.stdout)
        await rig.simulation.seen("d0", "closed")
        await rig.simulation.seen("d0", "Cancel")
        again = await curl(f"{rig.url}/v1/chat/completions", json_body={"messages": MESSAGES})
        assert again.status == 200


async def test_what_else_there_is(stack: Stack) -> None:
    base = stack.url.removesuffix("/v1")
    models = (await curl(f"{stack.url}/models")).json()
    assert [model["id"] for model in models["data"]] == ["tiny"]
    for path in (
        "/health",
        "/health/live",
        "/health/ready",
        "/healthz",
        "/version",
        "/props",
        "/load",
    ):
        assert (await curl(base + path)).status == 200, path
    missing = await curl(f"{stack.url}/nothing")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "not_found")
    tokens = (await curl(f"{base}/tokenize", json_body={"prompt": "Grüße"})).json()["tokens"]
    back = await curl(f"{base}/detokenize", json_body={"tokens": tokens})
    assert back.json() == {"prompt": "Grüße"}


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\n\n")
