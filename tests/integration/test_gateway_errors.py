"""Bad input and refusals: status, type, code, param, headers, and a server that goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.routes import generate
from gateway.schema.parse import parse_body
from shared.errors import InternalError, OverloadedError
from tests.support.gateway_rig import Rig, running_rig, until
from tests.support.tiny_tokenizer import MAX_POSITION, write_tokenizer_folder

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return error


BAD_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_value"),
    ({"messages": [{"content": "hi"}]}, "messages.0.role", "missing_required_parameter"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages.0.role", "invalid_value"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content",
        "invalid_value",
    ),
    ({"messages": USER, "temperature": "hot"}, "temperature", "invalid_value"),
    ({"messages": USER, "temperature": 2.5}, "temperature", "invalid_value"),
    ({"messages": USER, "temperature": True}, "temperature", "invalid_value"),
    ({"messages": USER, "top_p": 0}, "top_p", "invalid_value"),
    ({"messages": USER, "max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"messages": USER, "max_tokens": 1.5}, "max_tokens", "invalid_value"),
    ({"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
    ({"messages": USER, "presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"messages": USER, "seed": 1.5}, "seed", "invalid_value"),
    ({"messages": USER, "stop": ""}, "stop.0", "invalid_value"),
    ({"messages": USER, "stop": [1]}, "stop.0", "invalid_value"),
    ({"messages": USER, "stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"messages": USER, "stop_token_ids": [10**6]}, "stop_token_ids.0", "invalid_value"),
    ({"messages": USER, "logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"messages": USER, "logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
    ({"messages": USER, "logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
    ({"messages": USER, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"messages": USER, "stream_options": {}}, "stream_options", "invalid_value"),
    ({"messages": USER, "min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
    ({"messages": USER, "tandem": {"mode": "fast"}}, "tandem.mode", "invalid_value"),
    ({"messages": USER, "tandem": {"keep_rate": 0}}, "tandem.keep_rate", "invalid_value"),
    ({"messages": USER, "tandem": {"page_budget": 2}}, "tandem.page_budget", "invalid_value"),
    (
        {"messages": USER, "tandem": {"page_budget": 5, "recency_pages": 4}},
        "tandem.page_budget",
        "invalid_value",
    ),
    ({"messages": USER, "tandem": {"page_policy": "x"}}, "tandem.page_policy", "invalid_value"),
    (
        {"messages": USER, "tandem": {"page_policy": "quest", "page_heads": "kv_head"}},
        "tandem.page_heads",
        "invalid_value",
    ),
    ({"messages": USER, "tandem": 5}, "tandem", "invalid_value"),
    ({"messages": USER, "n": 0}, "n", "invalid_value"),
    ({"messages": USER, "n": 17}, "n", "invalid_value"),
    ({"messages": USER, "n": 129}, "n", "invalid_value"),
    (
        {"messages": USER, "tools": [{"type": "function"}]},
        "tools.0.function",
        "missing_required_parameter",
    ),
    (
        {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools",
        "tool_parser_missing",
    ),
    (
        {"messages": USER, "functions": [{"name": "f"}]},
        "functions",
        "unsupported_parameter",
    ),
    (
        {"messages": USER, "response_format": {"type": "json"}},
        "response_format.type",
        "invalid_value",
    ),
    (
        {
            "messages": USER,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"not": {}}},
            },
        },
        "response_format.json_schema.schema",
        "invalid_json_schema",
    ),
    ({"messages": USER, "max_tokens": 5000}, "messages", "context_length_exceeded"),
    (
        {"messages": [{"role": "user", "content": "x!" * 2000}]},
        "messages",
        "context_length_exceeded",
    ),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [1, "a"]}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt", "invalid_value"),
    ({"prompt": [-1]}, "prompt", "invalid_value"),
    ({"prompt": [10**9]}, "prompt", "invalid_value"),
    ({"prompt": [1] * (MAX_POSITION + 1)}, "prompt", "context_length_exceeded"),
    ({"prompt": "a", "echo": True}, "echo", "unsupported_parameter"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
    ({"prompt": "a", "best_of": 3}, "best_of", "unsupported_parameter"),
    ({"prompt": "a", "logprobs": 6}, "logprobs", "invalid_value"),
    ({"prompt": "a", "n": 2, "best_of": 3}, "best_of", "unsupported_parameter"),
    ({"prompt": ["a", "b"], "n": 17, "stream": True}, "n", "invalid_value"),
]


async def test_table_of_bad_requests(rig: Rig) -> None:
    rows = [(CHAT, row) for row in BAD_CHAT] + [(COMPLETIONS, row) for row in BAD_COMPLETIONS]
    for path, (body, param, code) in rows:
        response = await rig.http.post(path, json=body)
        error = error_of(response)
        assert (response.status_code, error["param"], error["code"]) == (400, param, code), body
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    assert (await rig.chat()).status_code == 200


async def test_more_messages_than_context_are_not_rendered(rig: Rig) -> None:
    messages = [{"role": "user", "content": ""}] * (MAX_POSITION + 1)
    error = error_of(await rig.chat(messages=messages))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "maximum context length is" in error["message"]


async def test_a_large_body_is_checked_beside_the_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = []

    def noted(raw: bytes, cls: type[Any]) -> Any:
        beside.append(threading.current_thread() is not threading.main_thread())
        return parse_body(raw, cls)

    monkeypatch.setattr(generate, "parse_body", noted)
    raw = b'{"prompt": "hi", "x": [' + b"[]," * 300_000 + b"NaN]}"
    error = error_of(await rig.http.post(COMPLETIONS, content=raw))
    assert (error["code"], error["param"]) == ("invalid_value", "x.300000")
    await rig.complete(prompt="hi")
    assert beside == [True, False]


async def test_hopelessly_long_text_is_not_encoded(rig: Rig) -> None:
    for response, param in (
        (await rig.complete(prompt="x" * 4_000_000), "prompt"),
        (await rig.chat(messages=[{"role": "user", "content": "x" * 4_000_000}]), "messages"),
    ):
        error = error_of(response)
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "4000" in error["message"]
        assert "at least" in error["message"]


async def test_context_overflow_wording(rig: Rig) -> None:
    response = await rig.chat(max_tokens=5000)
    message = error_of(response)["message"]
    assert message.startswith(f"This model's maximum context length is {MAX_POSITION} tokens")
    assert message.endswith("(context_length_exceeded)")
    assert "5000 for the answer" in message


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"[1]", None),
        (b'"text"', None),
        (b"\xff\xfe", None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
        (b'{"messages": [], "temperature": NaN}', "temperature"),
        (b'{"tandem": {"keep_rate": -Infinity}}', "tandem.keep_rate"),
        (b'{"logit_bias": [1, NaN]}', "logit_bias.1"),
        (b"[" * 100_000, None),
    ],
)
async def test_bad_json(rig: Rig, raw: bytes, param: str | None) -> None:
    response = await rig.http.post(CHAT, content=raw)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert (await rig.chat()).status_code == 200


async def test_huge_numbers_are_not_infinite(rig: Rig) -> None:
    raw = b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}'
    response = await rig.http.post(CHAT, content=raw)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_value"


async def test_unknown_model(rig: Rig) -> None:
    response = await rig.chat(model="org/other")
    error = error_of(response)
    assert (response.status_code, error["code"]) == (404, "model_not_found")
    assert "simulated" in error["message"]
    response = await rig.http.get("/v1/models/org/other")
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


async def test_unknown_path_and_method(rig: Rig) -> None:
    response = await rig.http.get("/v2/nothing")
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    response = await rig.http.get(CHAT)
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("announced", [True, False])
async def test_ten_megabytes(rig: Rig, announced: bool) -> None:
    text = b"x" * (10 * 1024 * 1024)
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    response = await rig.http.post(CHAT, content=body if announced else pieces())
    error = error_of(response)
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert str(8 * 1024 * 1024) in error["message"]
    assert (await rig.chat()).status_code == 200


async def test_openai_client_keeps_the_error(rig: Rig) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="simulated", prompt=[1] * 2000)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"


async def test_strict_params(folder: Path) -> None:
    async with running_rig(folder, strict_params=True) as rig:
        response = await rig.chat(temprature=1)
        error = error_of(response)
        assert (response.status_code, error["param"]) == (400, "temprature")
        assert "temperature" in error["message"]
        assert (await rig.chat(user="me")).status_code == 200


async def test_no_chat_template(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, chat_template=None)
    async with running_rig(folder) as rig:
        response = await rig.chat()
        assert (response.status_code, error_of(response)["code"]) == (400, "chat_template_missing")
        assert (await rig.complete()).status_code == 200


async def test_template_refusal(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    async with running_rig(write_tokenizer_folder(tmp_path, chat_template=template)) as rig:
        error = error_of(await rig.chat())
        assert error["param"] == "messages"
        assert "roles must alternate" in error["message"]


@pytest.mark.parametrize(
    ("prefills", "decodes", "code"),
    [(0, 1, "no_prefill_worker"), (1, 0, "no_decode_worker"), (0, 0, "no_prefill_worker")],
)
async def test_no_workers(folder: Path, prefills: int, decodes: int, code: str) -> None:
    async with running_rig(folder, prefills=prefills, decodes=decodes) as rig:
        for stream in (False, True):
            response = await rig.chat(stream=stream)
            error = error_of(response)
            assert (response.status_code, error["code"]) == (503, code)
            assert error["type"] == "server_error"
            assert int(response.headers["retry-after"]) >= 1
        ready = await rig.http.get("/health/ready")
        assert ready.status_code == 503
        assert ready.json()["detail"] == code
        assert (await rig.http.get("/health/live")).status_code == 200


async def test_draining_workers_and_gateway(rig: Rig) -> None:
    rig.prefills[0].draining = True

    async def not_ready() -> bool:
        return (await rig.http.get("/health/ready")).status_code == 503

    await until(not_ready)
    response = await rig.chat()
    assert (response.status_code, error_of(response)["code"]) == (503, "draining")
    metrics = (await rig.http.get(f"http://{rig.gateway.admin_address}/metrics")).text
    assert 'tandem_ready_workers{role="prefill"} 0.0' in metrics
    assert 'tandem_ready_workers{role="decode"} 1.0' in metrics
    await rig.gateway.drain()
    response = await rig.complete()
    assert (response.status_code, error_of(response)["code"]) == (503, "draining")


async def test_queue_full_at_the_gateway(folder: Path) -> None:
    async with running_rig(folder, queue_tokens=10) as rig:
        rig.prefills[0].plan.at("queued", 0.5)
        first = asyncio.create_task(rig.complete(prompt=[1] * 50))
        await rig.simulation.seen("p0", "Prefill")
        response = await rig.complete(prompt=[1] * 50)
        error = error_of(response)
        assert (response.status_code, error["code"]) == (429, "queue_full")
        assert error["type"] == "overloaded_error"
        assert response.headers["retry-after"]
        assert response.headers["retry-after-ms"]
        assert (await first).status_code == 200
        assert (await rig.complete(prompt=[1] * 50)).status_code == 200


async def test_queue_full_at_the_worker(rig: Rig) -> None:
    rig.prefills[0].plan.at("call", OverloadedError("the queue is full; wait", retry_after_s=7))
    response = await rig.chat(stream=True)
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")
    assert response.headers["retry-after"] == "7"


async def test_deadline(folder: Path) -> None:
    async with running_rig(folder, request_timeout_s=0.3) as rig:
        rig.prefills[0].plan.at("started", 5.0)
        response = await rig.chat()
        error = error_of(response)
        assert (response.status_code, error["code"]) == (504, "deadline_exceeded")
        assert error["type"] == "timeout_error"
        assert "allow more time" in error["message"]
        assert response.headers["x-should-retry"] == "false"


async def test_defects_are_neutral(rig: Rig) -> None:
    rig.prefills[0].plan.at("call", InternalError("secret detail"), times=9)
    response = await rig.chat()
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"


async def test_operations(rig: Rig) -> None:
    await rig.chat()
    ready = (await rig.http.get("/health")).json()
    assert ready["status"] == "ready"
    assert {worker["worker_id"] for worker in ready["workers"]} == {"p0", "d0"}
    version = (await rig.http.get("/version")).json()
    assert version["api"] == "tandem.v1"
    for address in (rig.gateway.rest_address, rig.gateway.admin_address):
        text = (await rig.http.get(f"http://{address}/metrics")).text
        expected = 'tandem_requests_total{code="200",endpoint="/v1/chat/completions",outcome="ok"}'
        assert f"{expected} 1.0" in text
        assert "tandem_ttft_seconds_count 1.0" in text
        assert "tandem_queued_prompt_tokens 0.0" in text
    assert (await rig.http.get(f"http://{rig.gateway.admin_address}/health")).status_code == 200
