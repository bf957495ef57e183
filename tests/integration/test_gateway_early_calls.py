"""Decode calls that are there before the KV: what they save, and what becomes of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import attempt
from gateway.early_calls import EarlyCalls
from shared.errors import HandoffError, InvalidRequestError, OverloadedError, UnavailableError
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig
from tests.support.simulated_workers import Action, Die, FailEvent
from tests.support.waiting import until

GONE = UnavailableError("stopping")
BUSY = FailEvent(OverloadedError("no pages", retry_after_s=1.0))
LOST = FailEvent(HandoffError("checksum differs"))


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    async with running_rig(folder, prefills=2, decodes=2, balancer="round_robin") as started:
        for worker in (*started.prefills, *started.decodes):
            worker.early = True
        yield started
        await until(lambda: _idle(started))


def _idle(rig: Rig) -> bool:
    """No call is open anywhere, and the gateway runs nothing."""
    pipeline, background = rig.gateway._pipeline, rig.gateway._background
    assert pipeline is not None
    running = [worker.running for worker in (*rig.prefills, *rig.decodes)]
    return not any(running) and pipeline.running.count == 0 and not background._tasks


def held(rig: Rig, phase: str) -> asyncio.Event:
    """Keeps the first prefill worker before a phase."""
    event = asyncio.Event()
    rig.prefills[0].plan.at(phase, event)
    return event


def made(rig: Rig, method: str) -> list[tuple[str, int]]:
    """Workers that saw a method, with the attempt."""
    return [(c.worker_id, c.attempt) for c in rig.simulation.calls if c.method == method]


async def called_early(rig: Rig) -> httpx.Response:
    """An answer whose decode worker was called before anything was sent there."""
    transfer = held(rig, "transfer")
    asked = asyncio.create_task(rig.chat())
    await until(lambda: made(rig, "Decode") == [("d0", 1)])
    assert not made(rig, "Reserve")
    transfer.set()
    return await asked


@pytest.mark.parametrize("answers", [1, 3])
async def test_the_call_waits_for_the_kv(rig: Rig, answers: int) -> None:
    transfer = held(rig, "transfer")
    asked = asyncio.create_task(rig.chat(n=answers))
    await until(lambda: len(made(rig, "Decode")) == answers)
    assert not made(rig, "Reserve")
    transfer.set()
    choices = (await asked).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == [DEFAULT_ANSWER] * answers
    assert made(rig, "Decode") == [("d0", 1)] * answers
    assert made(rig, "Release") == [("p0", 1)]
    assert not made(rig, "closed")
    assert not made(rig, "Abort")


async def test_tokens_wait_for_the_word_of_the_prefill_worker(rig: Rig) -> None:
    sealed = held(rig, "sealed")
    asked = asyncio.create_task(rig.chat())
    # The answer is whole at the decode worker, and its call has ended there.
    await until(lambda: bool(made(rig, "Decode")) and not rig.decodes[0].running)
    assert not asked.done()
    sealed.set()
    body = (await asked).json()
    assert body["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert body["tandem"]["transport"] == "grpc"


@pytest.mark.parametrize("action", [GONE, Die(), HandoffError("waited too long")], ids=str)
async def test_one_that_came_to_nothing_is_made_again(rig: Rig, action: Action) -> None:
    rig.decodes[0].plan.at("call", action)
    transfer = held(rig, "transfer")
    asked = asyncio.create_task(rig.chat())
    await until(lambda: made(rig, "closed") == [("d0", 1)])
    transfer.set()
    assert (await asked).json()["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert made(rig, "Decode") == [("d0", 1), ("d0", 1)]
    assert made(rig, "Prefill") == [("p0", 1)]
    assert not made(rig, "Resend")


async def test_another_worker_gets_the_kv(rig: Rig) -> None:
    rig.decodes[0].plan.at("reserve", BUSY)
    body = (await called_early(rig)).json()
    assert body["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert made(rig, "Decode") == [("d0", 1), ("d1", 1)]
    assert made(rig, "closed") == [("d0", 1)]
    assert body["tandem"]["route"].startswith("pair: p0 -> d1;")


@pytest.mark.parametrize("fails", [False, True], ids=["delivered elsewhere", "not delivered"])
async def test_what_is_refused_for_good_is_not_asked_again(
    rig: Rig, monkeypatch, fails: bool
) -> None:
    """The worker drops the handoff with its refusal: to the prefill worker that is a failure."""
    made_early: list[EarlyCalls] = []

    class Remembered(EarlyCalls):
        def __init__(self, *what: Any) -> None:
            super().__init__(*what)
            made_early.append(self)

    monkeypatch.setattr(attempt, "EarlyCalls", Remembered)
    refusal = InvalidRequestError("this does not fit", param="max_tokens")
    for worker in rig.decodes:
        worker.plan.at("call", refusal)
    if fails:
        rig.prefills[0].plan.at("delivery", LOST)
    else:
        rig.decodes[0].plan.at("reserve", BUSY)
    transfer = held(rig, "transfer")
    asked = asyncio.create_task(rig.chat())
    await until(lambda: any(early.refusal for early in made_early))
    transfer.set()
    response = await asked
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")
    assert made(rig, "Prefill") == [("p0", 1)]
    assert not made(rig, "Resend")


async def test_a_refusal_of_the_worker_that_has_the_kv(rig: Rig) -> None:
    rig.decodes[0].plan.at("call", InvalidRequestError("this does not fit", param="n"))
    response = await rig.chat()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert made(rig, "Decode") == [("d0", 1)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_waiting_call(rig: Rig, stream: bool) -> None:
    held(rig, "transfer")
    asked = asyncio.create_task(rig.chat(stream=stream))
    await rig.simulation.seen("d0", "Decode")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    for worker_id, last in (("d0", "Abort"), ("p0", "Cancel")):
        await rig.simulation.seen(worker_id, "closed")
        await rig.simulation.seen(worker_id, last)


async def test_a_client_that_leaves_before_the_word_ends_the_running_answer(rig: Rig) -> None:
    held(rig, "sealed")
    rig.decodes[0].plan.at("token:2", 30.0)
    asked = asyncio.create_task(rig.chat(stream=True))
    await rig.simulation.seen("d0", "Reserve")
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await rig.simulation.seen("d0", "closed")
    await rig.simulation.seen("d0", "Abort")


@pytest.mark.parametrize("phase", ["delivery", "sealed"])
async def test_a_prefill_worker_that_dies_ends_the_waiting_call(rig: Rig, phase: str) -> None:
    rig.prefills[0].plan.at(phase, Die())
    if phase == "sealed":
        rig.decodes[0].plan.at("token:1", 30.0)
    body = (await called_early(rig)).json()
    assert body["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert made(rig, "Prefill") == [("p0", 1), ("p1", 2)]
    assert ("d0", 1) in made(rig, "closed")
    assert "attempt 2" in body["tandem"]["route"]


async def test_a_second_delivery_is_called_under_its_own_name(rig: Rig) -> None:
    rig.prefills[0].plan.at("delivery", LOST)
    body = (await called_early(rig)).json()
    assert body["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert made(rig, "Resend") == [("p0", 1)]
    assert made(rig, "Decode") == [("d0", 1), ("d0", 2)]
    assert made(rig, "closed") == [("d0", 1)]


async def test_a_worker_that_dies_before_its_first_token_costs_no_second_reading(rig: Rig) -> None:
    rig.decodes[0].plan.at("token:1", Die())
    body = (await called_early(rig)).json()
    assert body["choices"][0]["message"]["content"] == DEFAULT_ANSWER
    assert made(rig, "Prefill") == [("p0", 1)]
    assert made(rig, "Resend") == [("p0", 1)]
    assert made(rig, "Decode") == [("d0", 1), ("d1", 2)]


async def test_an_answer_of_one_token_calls_nobody(rig: Rig) -> None:
    response = await rig.chat(max_tokens=1)
    assert response.json()["usage"]["completion_tokens"] == 1
    assert not made(rig, "Decode")
