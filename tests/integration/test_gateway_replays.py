"""Answers that lose their decode worker after tokens were sent: who may go on, and how."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.sdk import AsyncTandemClient, Message, UnavailableError
from shared.errors import HandoffError, OverloadedError
from shared.errors import UnavailableError as WorkerGone
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, data_frames, joined_text, running_rig
from tests.support.gateway_rig import until as until_holds
from tests.support.simulated_workers import Action, Die, FailEvent

ASKED: dict[str, Any] = {"tandem": {"replay": True}}
DRAINS = FailEvent(WorkerGone("drained", code="draining"))


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(
        folder,
        prefills=2,
        decodes=2,
        balancer="round_robin",
        replay_answers=True,
        retry_budget=1.0,
        breaker_failures=999,
    ) as started:
        yield started


def calls(rig: Rig, method: str) -> list[tuple[str, int]]:
    return [
        (call.worker_id, call.attempt) for call in rig.simulation.calls if call.method == method
    ]


async def outcomes(rig: Rig) -> dict[str, int]:
    """What health and metrics say, which is the same, without what never happened."""
    health = (await rig.http.get("/health")).json()["replays"]
    counted = {name: count for name, count in health["outcomes"].items() if count}
    metrics = (await rig.http.get("/metrics")).text
    for name, count in counted.items():
        assert f'tandem_replays_total{{outcome="{name}"}} {float(count)}' in metrics
    return counted


def error_of(response: httpx.Response) -> dict[str, Any]:
    frame: dict[str, Any] = data_frames(response.content)[-1]
    assert "error" in frame
    return frame["error"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "action", [WorkerGone("stopping"), Die(), DRAINS], ids=["ends", "dies", "drains"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_goes_on_where_it_was_cut(rig: Rig, action: Action, stream: bool) -> None:
    ids = rig.simulation.tokenizer.encode(DEFAULT_ANSWER)
    rig.decodes[0].plan.at("token:3", action)
    response = await rig.chat(
        stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}), **ASKED
    )
    assert response.status_code == 200
    frames = data_frames(response.content) if stream else [response.json()]
    if stream:
        assert joined_text(frames) == DEFAULT_ANSWER
        assert frames.pop() == "[DONE]"
    else:
        assert frames[0]["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    usage, report = frames[-1]["usage"], frames[-1]["tandem"]
    undisturbed = (await rig.chat()).json()
    assert usage == undisturbed["usage"]
    assert report["kept_tokens"] == undisturbed["tandem"]["kept_tokens"]
    assert report["kv_bytes"] == 2 * undisturbed["tandem"]["kv_bytes"] + 2000
    assert report["replayed_tokens"] == 3
    assert "attempt 2; a replay from answer token 3" in report["route"]
    assert report["phases_ms"]["replay"] > 0
    assert undisturbed["tandem"]["replayed_tokens"] == 0
    assert [attempt for _, attempt in calls(rig, "Prefill")] == [1, 2, 1]
    assert [worker for worker, _ in calls(rig, "Decode")][:2] == ["d0", "d1"]
    shown = tuple(ids[:2])
    assert rig.simulation.earlier == [(), (), shown, shown, (), ()]
    assert await outcomes(rig) == {"completed": 1}
    assert "tandem_retries_total{reason=" in (await rig.http.get("/metrics")).text


async def test_text_stop_strings_and_logprobs_hold_wherever_the_cut_is(rig: Rig) -> None:
    """What a client reads is the same whether the seam lies in a word, or in the stop string."""
    asked: dict[str, Any] = {"stop": ["is 42"], "logprobs": 2, "max_tokens": 60}
    right = (await rig.complete(**asked)).json()
    assert right["choices"][0]["finish_reason"] == "stop"
    tokens = right["usage"]["completion_tokens"]
    assert tokens > 3
    first, second = rig.decodes
    second.plan = first.plan  # whichever of them gets the answer dies, and the other one does not
    for cut in range(2, tokens):
        first.plan.at(f"token:{cut}", Die())
        again = (await rig.complete(**asked, **ASKED)).json()
        assert again["tandem"]["replayed_tokens"] == cut
        assert (again["choices"], again["usage"]) == (right["choices"], right["usage"])


@pytest.mark.parametrize(
    ("settings", "fields", "why"),
    [
        ({"replay_answers": False}, ASKED, "operator_forbids"),
        ({"replay_answers": True}, {}, "not_asked"),
        ({"replay_answers": True}, {"tandem": {"replay": False}}, "not_asked"),
        ({"replay_answers": True}, {"n": 2} | ASKED, "several_answers"),
    ],
    ids=["operator", "request", "request says no", "n"],
)
async def test_nothing_goes_on_that_was_not_allowed(
    folder: Path, settings: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    async with running_rig(folder, decodes=2, **settings) as rig:
        for worker in rig.decodes:
            worker.plan.at("token:3", Die())
        error = error_of(await rig.chat(stream=True, **fields))
        assert error["code"] == "no_decode_worker"
        assert [attempt for _, attempt in calls(rig, "Prefill")] == [1]
        assert await outcomes(rig) == {why: 1}
        assert (await rig.http.get("/health")).json()["replays"]["allowed"] == settings[
            "replay_answers"
        ]


async def test_an_error_that_another_worker_would_repeat_is_no_reason(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:3", FailEvent(HandoffError("page lost")))
    assert error_of(await rig.chat(stream=True, **ASKED))["code"] == "kv_transfer_failed"
    assert await outcomes(rig) == {}


async def test_an_answer_goes_on_once(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:3", Die())
    rig.decodes[1].plan.at("token:5", Die())
    response = await rig.chat(stream=True, **ASKED)
    assert error_of(response)["code"] == "no_decode_worker"
    assert DEFAULT_ANSWER.startswith(joined_text(data_frames(response.content)[:-1]))
    assert await outcomes(rig) == {"failed": 1}


async def test_a_budget_that_is_used_up_ends_it(folder: Path) -> None:
    async with running_rig(
        folder, decodes=2, replay_answers=True, retry_budget=0.0, breaker_failures=999
    ) as rig:
        for worker in rig.decodes:
            worker.plan.at("token:3", Die(), times=99)
        errors = [error_of(await rig.chat(stream=True, **ASKED)) for _ in range(12)]
        assert {error["code"] for error in errors} == {"no_decode_worker"}
        found = await outcomes(rig)
        told = ["retry_budget" in error["message"] for error in errors]
        assert sum(told) == found["no_budget"]
        assert found.keys() == {"failed", "no_budget"}
        assert found["failed"] + found["no_budget"] == 12


@pytest.mark.parametrize(
    "action", [OverloadedError("full", retry_after_s=1), WorkerGone("stopping"), Die()], ids=str
)
async def test_a_pair_that_fails_before_it_went_on_is_followed_by_another(
    rig: Rig, action: Action
) -> None:
    rig.decodes[0].plan.at("token:3", Die())
    rig.prefills[1].plan.at("call", action)
    response = await rig.chat(stream=True, **ASKED)
    assert joined_text(data_frames(response.content)) == DEFAULT_ANSWER
    assert [worker for worker, _ in calls(rig, "Prefill")] == ["p0", "p1", "p0"]
    assert await outcomes(rig) == {"completed": 1}


async def test_without_another_decode_worker_there_is_one_error_frame(folder: Path) -> None:
    async with running_rig(folder, replay_answers=True) as rig:
        gate = asyncio.Event()
        rig.decodes[0].plan.at("token:3", gate)
        asked = asyncio.create_task(rig.chat(stream=True, **ASKED))
        await rig.simulation.seen("d0", "Decode")
        stopping = asyncio.create_task(rig.decodes[0].stop())
        response = await asked
        await stopping
        assert error_of(response)["code"] == "no_decode_worker"
        assert sum("error" in frame for frame in data_frames(response.content)) == 1
        assert await outcomes(rig) == {"failed": 1}


async def test_a_client_that_leaves_meanwhile_is_counted_as_such(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:3", Die())
    rig.prefills[1].plan.at("started", 30.0)
    asked = asyncio.create_task(rig.chat(stream=True, **ASKED))
    await rig.simulation.seen("p1", "Prefill")
    await asyncio.sleep(0.05)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await rig.simulation.seen("p1", "closed")

    async def counted() -> bool:
        return await outcomes(rig) == {"client_left": 1}

    await until_holds(counted)


async def test_over_grpc(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:3", Die())
    async with AsyncTandemClient(rig.gateway.grpc_address) as client:
        hi = (Message("user", "hi"),)
        answer = await client.generate(hi, replay=True)
        assert answer.text == DEFAULT_ANSWER
        assert answer.report is not None
        assert answer.report.replayed_tokens == 3
        rig.decodes[0].plan.at("token:3", Die())
        rig.decodes[1].plan.at("token:3", Die())
        with pytest.raises(UnavailableError):
            await client.generate(hi)
    assert await outcomes(rig) == {"completed": 1, "not_asked": 1}
