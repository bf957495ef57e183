"""The gateway's log of requests and its traces when things go wrong."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.errors import UnavailableError
from tests.support.gateway_rig import Rig, running_rig, strict_json, until
from tests.support.simulated_workers import Die, FailEvent


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder, prefills=2) as started:
        yield started


async def remembered(rig: Rig, name: str = "") -> Any:
    url = f"http://{rig.gateway.admin_address}/debug/requests"
    async with httpx.AsyncClient() as http:
        return strict_json((await http.get(f"{url}/{name}" if name else url)).text)


async def metrics_of(rig: Rig) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://{rig.gateway.admin_address}/metrics")).text


async def test_every_try_is_told(rig: Rig) -> None:
    for prefill in rig.prefills:
        prefill.plan.at("call", Die(), times=1)
    headers = {"x-request-id": "retried"}
    body = {"prompt": "hi", "max_tokens": 4}
    response = await rig.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    found = await remembered(rig, "retried")
    assert found["state"] == "ok"
    assert [each["attempt"] for each in found["tries"]] == [1, 2, 3]
    assert [bool(each["failed"]) for each in found["tries"]] == [True, True, False]
    assert {each["prefill"] for each in found["tries"][:2]} == {"p0", "p1"}
    assert found["attempts"] == 3


async def test_a_try_names_the_decode_worker_that_took_the_second_delivery(folder: Path) -> None:
    async with running_rig(folder, decodes=2) as rig:
        rig.decodes[0].plan.at("call", FailEvent(UnavailableError("gone; retry")))
        headers = {"x-request-id": "delivered-twice"}
        await rig.http.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
        found = await remembered(rig, "delivered-twice")
        assert found["tries"] == [{"attempt": 1, "prefill": "p0", "decode": "d1", "failed": None}]
        flows = rig.gateway._traffic.flows()
        assert [(flow["prefill"], flow["decode"]) for flow in flows] == [("p0", "d1")]


async def test_a_failure_is_told_with_what_was_reached(rig: Rig) -> None:
    for decode in rig.decodes:
        decode.plan.at("token:2", FailEvent(UnavailableError("gone; retry")), times=9)
    headers = {"x-request-id": "failed"}
    body = {"prompt": "hi", "max_tokens": 9, "ignore_eos": True}
    await rig.http.post("/v1/completions", json=body, headers=headers)
    found = await remembered(rig, "failed")
    assert found["state"] == "error"
    assert found["error"]["code"] == found["code"] != ""
    assert {"gateway", "prefill"} <= {bar["hop"] for bar in found["trace"]["waterfall"]}


async def test_a_running_request_is_seen_and_one_that_was_left_is_cancelled(rig: Rig) -> None:
    rig.simulation.token_delay_s = 0.05
    body = {"prompt": "hi", "max_tokens": 500, "ignore_eos": True, "stream": True}
    headers = {"x-request-id": "left"}
    async with rig.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        async for _ in response.aiter_bytes():
            break
        running = await remembered(rig, "left")
        assert running["state"] == "running"
        assert running["trace"]["waterfall"]

    async def cancelled() -> bool:
        return bool((await remembered(rig, "left"))["state"] == "cancelled")

    await until(cancelled)


async def test_prompts_are_kept_when_the_operator_says_so(folder: Path) -> None:
    async with running_rig(folder, debug_prompts=True) as rig:
        await rig.complete(prompt="tell me a secret", max_tokens=2)
        newest = (await remembered(rig))["requests"][0]
        assert "tell me a secret" in (await remembered(rig, newest["request_id"]))["prompt"]


async def test_settings_bound_the_log(folder: Path) -> None:
    async with running_rig(folder, debug_requests=2) as rig:
        for _ in range(4):
            await rig.complete(max_tokens=2)
        assert len((await remembered(rig))["requests"]) == 2


async def test_a_stall_is_counted(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:2", 1.1)
    await rig.complete(max_tokens=4, ignore_eos=True)
    assert "tandem_stream_stalls_total 1.0" in await metrics_of(rig)


@pytest.mark.timeout(60)
async def test_a_collector_that_is_gone_harms_nothing(folder: Path) -> None:
    async with running_rig(folder, otlp_endpoint="http://127.0.0.1:1") as rig:
        for _ in range(20):
            response = await rig.complete(max_tokens=3, stream=True)
            assert response.status_code == 200
            assert response.text.endswith("data: [DONE]\n\n")


async def test_a_malformed_trace_is_ignored(rig: Rig) -> None:
    headers = {"traceparent": "00-zz-yy-01", "x-request-id": "odd", "tracestate": "=" * 2000}
    body = {"prompt": "hi", "max_tokens": 2}
    response = await rig.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    assert len((await remembered(rig, "odd"))["trace_id"]) == 32
