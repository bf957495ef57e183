"""POST /v1/responses: what is refused and why, what goes wrong, and who leaves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.errors import HandoffError, UnavailableError
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig, until
from tests.support.response_cases import nested
from tests.support.response_events import named_events
from tests.support.simulated_workers import Action, Die, FailEvent
from tests.support.tiny_tokenizer import write_tokenizer_folder
from tests.support.tool_templates import TEMPLATES

LOST = FailEvent(HandoffError("page lost"))
CLOCK: dict[str, Any] = {"type": "function", "name": "clock"}
LOGPROBS = "message.output_text.logprobs"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose chat template knows tools."""
    folder = tmp_path_factory.mktemp("refused") / "tokenizer"
    return write_tokenizer_folder(folder, chat_template=TEMPLATES["hermes"])


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as opened:
        yield opened


def call(**fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **fields}


def image(kind: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, "image_url": "data:,"}]}]


def by_schema(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", **fields}}


REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"input": None}, "input", "invalid_value"),
    ({"input": 5}, "input", "invalid_value"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": ["hi"]}, "input.0", "invalid_value"),
    ({"input": [{"role": "user"}]}, "input.0.content", "missing_required_parameter"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "invalid_value"),
    ({"input": image("input_image")}, "input.0.content", "invalid_value"),
    ({"input": image("input_file")}, "input.0.content", "invalid_value"),
    ({"input": [{"type": "web_search_call"}]}, "input.0", "invalid_value"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input.0", "invalid_value"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "invalid_value"),
    ({"input": [{"id": "msg_1"}]}, "input.0", "invalid_value"),
    ({"input": [{"type": ["x"]}]}, "input.0", "invalid_value"),
    ({"input": [call(name="")]}, "input.0.name", "invalid_value"),
    ({"input": [call(arguments={})]}, "input.0.arguments", "invalid_value"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input.0.call_id",
        "invalid_value",
    ),
    (
        {"input": [call(), {"type": "function_call_output", "call_id": "d", "output": "x"}]},
        "input.1.call_id",
        "invalid_value",
    ),
    (
        {"input": [call(), {"type": "function_call_output", "call_id": "c", "output": {}}]},
        "input.1.output",
        "invalid_value",
    ),
    ({"instructions": ["x"]}, "instructions", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type", "invalid_value"),
    ({"tools": [CLOCK, {"type": "mcp", "server_label": "x"}]}, "tools.1.type", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools.0.name", "missing_required_parameter"),
    ({"tools": [CLOCK, CLOCK]}, "tools.1.name", "invalid_value"),
    (
        {"tools": [{**CLOCK, "parameters": nested(300)}], "tool_choice": "none"},
        "tools.0.parameters",
        "invalid_value",
    ),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [CLOCK], "tool_choice": {"type": "web_search"}}, "tool_choice", "invalid_value"),
    (
        {"tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice",
        "invalid_value",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "invalid_value"),
    ({"text": by_schema(name="a")}, "text.format.schema", "missing_required_parameter"),
    ({"text": by_schema(name="a b", schema={})}, "text.format.name", "invalid_value"),
    (
        {"text": by_schema(name="a", schema={"not": {}})},
        "text.format.schema",
        "invalid_json_schema",
    ),
    ({"text": by_schema(name="a", schema={}), "ignore_eos": True}, "ignore_eos", "invalid_value"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ({"include": ["everything"]}, "include.0", "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a", "invalid_value"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
    ({"stream_options": {}}, "stream_options", "invalid_value"),
    ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    (
        {"context_management": [{"type": "compaction"}]},
        "context_management",
        "unsupported_parameter",
    ),
    ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter"),
    ({"moderation": False}, "moderation", "unsupported_parameter"),
    ({"tools": [CLOCK], "include": [LOGPROBS]}, "include", "unsupported_parameter"),
    ({"tools": [CLOCK], "top_logprobs": 1}, "top_logprobs", "unsupported_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"n": [1]}, "n", "unsupported_parameter"),
    ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
    ({"messages": []}, "messages", "unsupported_parameter"),
    ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ({"input": "x" * 9000}, "input", "context_length_exceeded"),
    ({"input": [{"role": "user", "content": ""}] * 1100}, "input", "context_length_exceeded"),
    ({"max_output_tokens": 1024}, "input", "context_length_exceeded"),
]


async def test_refusals_name_the_field_before_any_work(rig: Rig) -> None:
    for fields, param, code in REFUSED:
        answer = await rig.respond(**{"stream": "stream_options" not in fields, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code), fields
        assert error["type"] == "invalid_request_error"
    unknown = await rig.respond(model="other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    missing = await rig.http.post("/v1/responses", json={})
    assert missing.json()["error"]["code"] == "missing_required_parameter"
    assert rig.methods(rig.prefills[0]) == []
    # Harmless values of what is not offered.
    answer = await rig.respond(
        background=False, previous_response_id=None, conversation=None, store=False, n=1
    )
    assert answer.status_code == 200


NOT_OFFERED = (
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/responses/compact"),
)


async def test_nothing_is_stored(rig: Rig, client: openai.AsyncOpenAI) -> None:
    for method, path in NOT_OFFERED:
        answer = await rig.http.request(method, path)
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "not_found"
        assert "not stored" in error["message"]
    with pytest.raises(openai.NotFoundError, match="not stored"):
        await client.responses.retrieve("resp_1")
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as caught:
        await client.responses.create(
            model="simulated", input="hi", previous_response_id="resp_1", stream=True
        )
    assert caught.value.param == "previous_response_id"


async def test_tools_need_a_template_that_prints_them(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path / "plain")
    async with running_rig(folder) as plain:
        answer = await plain.respond(tools=[CLOCK])
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "tool_parser_missing"
        assert (await plain.respond(tools=[CLOCK], tool_choice="none")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_early_failure_has_its_own_status(rig: Rig, stream: bool) -> None:
    rig.prefills[0].plan.at("started", UnavailableError("stopping"), times=9)
    answer = await rig.respond(stream=stream)
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "no_prefill_worker"


@pytest.mark.parametrize("action", [Die(), LOST], ids=["dies", "fails"])
async def test_a_failure_in_mid_stream_is_the_one_last_event(
    rig: Rig, client: openai.AsyncOpenAI, action: Action
) -> None:
    rig.decodes[0].plan.at("token:3", action, times=2)
    events = named_events((await rig.respond(stream=True)).content)
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.failed"
    assert response["status"] == "failed"
    (message,) = response["output"]
    assert message["status"] == "incomplete"
    assert DEFAULT_ANSWER.startswith(message["content"][0]["text"])
    assert response["usage"] is None
    error = response["error"]
    assert error["code"] == error["type"] == "server_error"
    assert error["message"]
    if isinstance(action, FailEvent):
        assert error["reason"] == "kv_transfer_failed"
    async with client.responses.stream(model="simulated", input="hi") as stream:
        last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert (await rig.respond()).status_code == 200


async def test_a_failure_within_a_call_is_the_one_last_event(rig: Rig) -> None:
    begun = 'Hm. <tool_call>\n{"name": "clock", "arguments": {"a"'
    rig.answer_with(begun + ": 1}}\n</tool_call>")
    rig.decodes[0].plan.at(f"token:{len(rig.simulation.tokenizer.encode(begun))}", LOST)
    tools = [{**CLOCK, "parameters": {"type": "object"}}]
    events = named_events((await rig.respond(stream=True, tools=tools)).content)
    assert events[-1]["type"] == "response.failed"
    text, cut = events[-1]["response"]["output"]
    assert (text["status"], cut["status"]) == ("completed", "incomplete")
    assert cut["arguments"] == '{"a"'
    rig.decodes[0].plan.at("token:3", LOST)
    answer = await rig.respond()
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "kv_transfer_failed"


async def after_two_pings(rig: Rig, release: asyncio.Event) -> bytes:
    """A stream whose first token waits for `release`, which is set once two pings came."""
    raw, body = b"", {"input": "hi", "stream": True}
    async with rig.http.stream("POST", "/v1/responses", json=body) as response:
        async for piece in response.aiter_raw():
            raw += piece
            if raw.count(b": ping\n\n") == 2:
                release.set()
    assert raw.startswith(b": ping\n\n: ping\n\n")
    return raw


async def test_pings_come_before_the_events_and_a_failure_after_them(folder: Path) -> None:
    async with running_rig(folder, keepalive_s=0.05) as rig:
        release = asyncio.Event()
        rig.prefills[0].plan.at("first_token", release)
        events = named_events(await after_two_pings(rig, release))
        assert events[-1]["type"] == "response.completed"
        # Nothing was generated when it failed, but the status was sent.
        release = asyncio.Event()
        rig.prefills[0].plan.at("started", release)
        rig.prefills[0].plan.at("first_token", LOST, times=9)
        events = named_events(await after_two_pings(rig, release))
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.failed",
        ]
        response = events[-1]["response"]
        assert response["output"] == []
        assert response["error"]["reason"] == "kv_transfer_failed"


async def test_the_status_waits_for_the_first_token(rig: Rig) -> None:
    release = asyncio.Event()
    rig.prefills[0].plan.at("first_token", release)
    asked = asyncio.create_task(
        rig.http.send(
            rig.http.build_request("POST", "/v1/responses", json={"input": "hi", "stream": True}),
            stream=True,
        )
    )
    await rig.simulation.seen("p0", "Prefill")
    done, _ = await asyncio.wait({asked}, timeout=0.2)
    assert not done
    release.set()
    response = await asked
    raw = await response.aread()
    assert named_events(raw)[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("phase", "stream"), [("started", False), ("first_token", True), ("token:2", True)]
)
async def test_a_client_that_leaves_frees_both_sides(rig: Rig, phase: str, stream: bool) -> None:
    worker = rig.decodes[0] if phase == "token:2" else rig.prefills[0]
    worker.plan.at(phase, 30.0)
    asked = asyncio.create_task(rig.respond(stream=stream))
    await rig.simulation.seen(worker.worker_id, "Decode" if worker.role == "decode" else "Prefill")
    await asyncio.sleep(0.1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await rig.simulation.seen(worker.worker_id, "closed")
    await rig.simulation.seen(worker.worker_id, "Cancel")

    async def counted() -> bool:
        metrics = (await rig.http.get("/metrics")).text
        left = 'tandem_requests_total{code="499",endpoint="/v1/responses",outcome="cancelled"} 1.0'
        return left in metrics and "tandem_requests_in_flight 0.0" in metrics

    await until(counted)
    assert (await rig.respond()).status_code == 200


async def test_a_full_queue_is_told_early(folder: Path) -> None:
    async with running_rig(folder, queue_tokens=20) as rig:
        release = asyncio.Event()
        rig.prefills[0].plan.at("queued", release)
        first = asyncio.create_task(rig.respond())
        await rig.simulation.seen("p0", "Prefill")
        refused = await rig.respond(stream=True)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["retry-after"]
        release.set()
        assert (await first).status_code == 200
