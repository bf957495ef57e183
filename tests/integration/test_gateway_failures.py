"""Failures at every hop: retry where nobody noticed, one error frame where somebody did."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from structlog.testing import capture_logs

from shared.errors import HandoffError, InternalError, OverloadedError, UnavailableError
from tests.support.gateway_rig import (
    DEFAULT_ANSWER,
    Rig,
    data_frames,
    joined_text,
    running_rig,
    until,
)
from tests.support.simulated_workers import Action, Die, FailEvent

GONE = UnavailableError("stopping")
BROKEN = FailEvent(HandoffError("checksum differs"))


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder, prefills=2, decodes=2, balancer="round_robin") as started:
        yield started


def attempts(rig: Rig) -> list[int]:
    return [call.attempt for call in rig.simulation.calls if call.method == "Prefill"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("phase", "action"),
    [
        pytest.param(phase, action, id=f"{phase}-{name}")
        for phase in ("call", "queued", "started", "first_token", "transfer")
        for name, action in (("refuses", GONE), ("dies", Die()), ("fails", BROKEN))
        if not (phase == "call" and isinstance(action, FailEvent))
    ],
)
async def test_prefill_failure_is_retried(
    rig: Rig, phase: str, action: Action, stream: bool
) -> None:
    rig.prefills[0].plan.at(phase, action)
    response = await rig.chat(stream=stream)
    assert response.status_code == 200
    if stream:
        frames = data_frames(response.content)
        assert joined_text(frames) == DEFAULT_ANSWER
        assert sum("role" in c["delta"] for f in frames[:-1] for c in f["choices"]) == 1
    else:
        assert response.json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    # A second delivery that found nothing held has used up a number.
    assert attempts(rig) == [1, 3 if (phase, action) == ("transfer", BROKEN) else 2]
    used = [call.worker_id for call in rig.simulation.calls if call.method == "Prefill"]
    assert used == ["p0", "p1"]


async def test_first_token_is_forced_on_a_retry(rig: Rig) -> None:
    rig.prefills[0].plan.at("transfer", GONE)
    ids = [rig.simulation.tokenizer.encode(text)[0] for text in ("A", "B")]
    answers = iter([[ids[0]] * 3, [ids[1]] * 3])
    known: dict[str, Any] = {}

    def answer(_prompt: object) -> list[int]:
        # The second attempt would sample another first token.
        if "first" not in known:
            known["first"] = next(answers)
            return known["first"]  # type: ignore[no-any-return]
        return known.setdefault("second", next(answers, ids))  # type: ignore[no-any-return]

    rig.simulation.answer = answer
    frames = data_frames((await rig.chat(stream=True, max_tokens=3)).content)
    assert joined_text(frames) == "ABB"


async def test_overloaded_worker_is_passed_by(rig: Rig) -> None:
    rig.prefills[0].plan.at("call", OverloadedError("full", retry_after_s=3))
    assert (await rig.chat()).status_code == 200
    assert attempts(rig) == [1, 2]


async def test_too_many_failures(rig: Rig) -> None:
    for worker in rig.prefills:
        worker.plan.at("started", GONE, times=9)
    response = await rig.chat(stream=True)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_prefill_worker"
    assert response.headers["content-type"] == "application/json"
    assert attempts(rig) == [1, 2, 3]


async def test_transfer_failure_is_retried_once_then_502(rig: Rig) -> None:
    for worker in rig.prefills:
        worker.plan.at("started", BROKEN, times=9)
    response = await rig.chat()
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "kv_transfer_failed"
    assert attempts(rig) == [1, 2]


async def test_transfer_failure_after_the_first_token_is_an_error_frame(rig: Rig) -> None:
    for worker in rig.prefills:
        worker.plan.at("transfer", BROKEN, times=9)
    response = await rig.chat(stream=True)
    assert response.status_code == 200
    frames = data_frames(response.content)
    assert frames[-1]["error"]["code"] == "kv_transfer_failed"
    assert frames[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in frames
    assert sum("error" in frame for frame in frames) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_damaged_transfer_is_sent_again_and_not_computed_again(
    folder: Path, stream: bool
) -> None:
    async with running_rig(folder) as rig:
        rig.prefills[0].plan.at("delivery", BROKEN)
        response = await rig.chat(stream=stream)
        assert response.status_code == 200
        assert (
            joined_text(data_frames(response.content))
            if stream
            else response.json()["choices"][0]["message"]["content"]
        ) == DEFAULT_ANSWER
        assert attempts(rig) == [1]
        assert [c.attempt for c in rig.simulation.calls if c.method == "Decode"] == [2]


async def test_the_only_decode_worker_gets_a_lost_cache_again_but_not_for_ever(
    folder: Path,
) -> None:
    async with running_rig(folder) as rig:
        rig.decodes[0].plan.at("call", HandoffError("not adopted in time"), times=2)
        response = await rig.chat()
        assert response.json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
        assert [c.attempt for c in rig.simulation.calls if c.method == "Decode"] == [1, 2, 3]
        assert attempts(rig) == [1, 3]


@pytest.mark.parametrize("action", [GONE, Die()], ids=["refuses", "dies"])
async def test_decode_failure_before_it_accepts_is_a_second_delivery(
    rig: Rig, action: Action
) -> None:
    rig.decodes[0].plan.at("call", action)
    response = await rig.chat()
    assert response.json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert attempts(rig) == [1]
    assert "Resend" in rig.methods(rig.prefills[0])
    assert "Decode" in rig.methods(rig.decodes[1])
    assert response.json()["tandem"]["route"].startswith("pair: p0 -> d1;")


async def test_decode_failure_after_it_accepted_is_a_second_delivery_too(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:1", Die())
    response = await rig.chat()
    assert response.json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert attempts(rig) == [1], "the KV is held until the first token after it"
    assert rig.methods(rig.prefills[0]).count("Resend") == 1


async def test_a_decode_worker_that_breaks_at_its_first_step_starts_again(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:1", FailEvent(InternalError("a step failed")))
    response = await rig.chat()
    assert response.json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert attempts(rig) == [1, 2]


@pytest.mark.parametrize(
    "action", [GONE, Die(), FailEvent(HandoffError("page lost"))], ids=["ends", "dies", "fails"]
)
async def test_decode_failure_in_mid_stream_is_an_error_frame(rig: Rig, action: Action) -> None:
    rig.decodes[0].plan.at("token:3", action)
    response = await rig.chat(stream=True, stream_options={"include_usage": True})
    frames = data_frames(response.content)
    assert "error" in frames[-1]
    assert sum("error" in frame for frame in frames) == 1
    assert "[DONE]" not in frames
    assert all(c["finish_reason"] is None for f in frames[:-1] for c in f["choices"])
    assert (await rig.chat()).status_code == 200


async def test_openai_client_raises_on_the_error_frame(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:3", FailEvent(HandoffError("page lost")))
    async with openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key="none", max_retries=0
    ) as client:
        stream = await client.completions.create(
            model="simulated", prompt="hi", max_tokens=50, stream=True
        )
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
    assert caught.value.code == "kv_transfer_failed"


async def test_busy_decode_worker_is_passed_by(rig: Rig) -> None:
    rig.decodes[0].plan.at("reserve", BROKEN)
    response = await rig.chat()
    assert response.json()["tandem"]["route"].startswith("pair: p0 -> d1;")


async def test_vanished_worker_leaves_the_rotation(folder: Path) -> None:
    async with running_rig(folder, prefills=2, breaker_failures=1, poll_interval_s=5.0) as rig:
        await rig.prefills[0].stop()
        for _ in range(4):
            assert (await rig.chat()).status_code == 200
        workers = (await rig.http.get("/health/ready")).json()["workers"]
        reachable = {worker["worker_id"]: worker["reachable"] for worker in workers}
        assert reachable == {"p0": False, "p1": True, "d0": True}


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_dead_worker_is_known_with_the_first_request(folder: Path, role: str) -> None:
    async with running_rig(folder, poll_interval_s=60.0) as rig:
        worker = rig.prefills[0] if role == "prefill" else rig.decodes[0]
        assert (await rig.chat()).status_code == 200
        await worker.stop()
        response = await rig.chat()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == f"no_{role}_worker"
        assert response.headers["retry-after"]
        assert (await rig.http.get("/health/ready")).status_code == 503


async def test_a_refused_retry_names_the_budget(folder: Path) -> None:
    async with running_rig(
        folder, prefills=2, retry_budget=0.0, max_retries=1, breaker_failures=999
    ) as rig:
        for prefill in rig.prefills:
            prefill.plan.at("call", GONE, times=99)
        errors = [(await rig.chat()).json()["error"] for _ in range(12)]
        assert {error["code"] for error in errors} == {"no_prefill_worker"}
        told = ["retry_budget" in error["message"] for error in errors]
        assert told == [False] * 10 + [True] * 2


async def test_a_worker_that_died_is_no_warning_of_what_it_is_not_told(folder: Path) -> None:
    async with running_rig(folder, poll_interval_s=60.0) as rig:
        gate = asyncio.Event()
        rig.decodes[0].plan.at("accepted", gate)
        with capture_logs() as lines:
            asked = asyncio.create_task(rig.chat())
            await rig.simulation.seen("d0", "Decode")
            await rig.prefills[0].stop()
            gate.set()
            assert (await asked).status_code == 200

            async def told() -> bool:
                return any(line.get("task") == "release" for line in lines)

            await until(told)
        levels = {line["log_level"] for line in lines if line.get("task") == "release"}
        assert levels == {"info"}


async def test_a_transfer_that_died_with_its_worker_is_not_tried_there_again(folder: Path) -> None:
    async with running_rig(folder, poll_interval_s=60.0) as rig:
        await rig.decodes[0].stop()
        rig.prefills[0].plan.at("started", BROKEN)
        response = await rig.chat()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_decode_worker"
        assert attempts(rig) == [1]


async def test_an_answer_that_was_cut_tells_that_its_worker_is_dead(folder: Path) -> None:
    async with running_rig(folder, poll_interval_s=60.0) as rig:
        rig.simulation.token_delay_s = 0.05
        answer = asyncio.ensure_future(rig.chat(stream=True))
        await rig.simulation.seen("d0", "Decode")
        await rig.decodes[0].stop()
        assert data_frames((await answer).content)[-1]["error"]["code"] == "no_decode_worker"
        assert (await rig.http.get("/health/ready")).status_code == 503


async def test_gateway_becomes_ready_when_workers_come(rig: Rig, folder: Path) -> None:
    address = rig.prefills[0].address
    port = int(address.rpartition(":")[2])
    await rig.prefills[0].stop()
    async with running_rig(
        folder, prefills=0, prefill_workers=(address,), poll_interval_s=0.05
    ) as late:
        assert (await late.http.get("/health/ready")).status_code == 503
        await rig.prefills[0].start(port=port)

        async def ready() -> bool:
            return (await late.http.get("/health/ready")).status_code == 200

        await until(ready)


async def test_hold_is_renewed_until_decode_accepts(rig: Rig) -> None:
    for decode in rig.decodes:  # whichever is chosen
        decode.plan.at("accepted", 0.4)

    def renewals() -> int:
        return sum(rig.methods(prefill).count("Renew") for prefill in rig.prefills)

    assert (await rig.chat()).status_code == 200
    seen = renewals()
    assert seen >= 2

    async def released() -> bool:
        return any("Release" in rig.methods(prefill) for prefill in rig.prefills)

    await until(released)
    seen = renewals()
    await asyncio.sleep(0.15)
    assert renewals() == seen
