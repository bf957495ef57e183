"""Prompts wait in the gateway while workers are full: bounded, in time, in fair order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from shared.errors import UnavailableError
from tests.support.gateway_rig import Rig, running_rig, until

LONG = [1] * 100


@pytest.fixture
async def rig(folder: Path) -> AsyncIterator[Rig]:
    """One worker that gets no more than two long prompts."""
    async with running_rig(folder, worker_prompt_tokens=150) as started:
        yield started


def close_gate(rig: Rig, *, times: int = 99) -> asyncio.Event:
    """Prompts get stuck in compute until the event is set."""
    gate = asyncio.Event()
    rig.prefills[0].plan.at("first_token", gate, times=times)
    return gate


def send(rig: Rig, count: int, prompt: list[int] = LONG) -> list[asyncio.Task[httpx.Response]]:
    return [asyncio.create_task(rig.complete(prompt=prompt)) for _ in range(count)]


def prefills(rig: Rig) -> int:
    return rig.methods(rig.prefills[0]).count("Prefill")


async def queue_depth(rig: Rig) -> int:
    lines = (await rig.http.get("/metrics")).text.splitlines()
    (line,) = (line for line in lines if line.startswith("tandem_queue_depth "))
    return int(float(line.split()[1]))


async def all_queued(rig: Rig, waiting: int, *, sent: int = 2) -> None:
    """The worker was sent so many, which have started; `waiting` wait for their start."""

    async def holds() -> bool:
        return prefills(rig) == sent and await queue_depth(rig) == waiting

    await until(holds)


async def test_a_worker_gets_what_keeps_it_busy_and_the_rest_waits_here(rig: Rig) -> None:
    gate = close_gate(rig)
    asked = send(rig, 6)
    await all_queued(rig, 4)
    metrics = (await rig.http.get("/metrics")).text
    assert "tandem_queued_prompt_tokens 400.0" in metrics
    assert "tandem_requests_in_flight 6.0" in metrics
    gate.set()
    responses = await asyncio.gather(*asked)
    assert [response.status_code for response in responses] == [200] * 6
    assert prefills(rig) == 6
    phases = [response.json()["tandem"]["phases_ms"] for response in responses]
    assert all("gateway_queue" in phase for phase in phases)
    metrics = (await rig.http.get("/metrics")).text
    assert 'tandem_phase_seconds_count{phase="gateway_queue"} 6.0' in metrics
    assert await queue_depth(rig) == 0


async def test_a_client_that_leaves_the_queue_costs_no_worker_anything(rig: Rig) -> None:
    gate = close_gate(rig)
    asked = send(rig, 3)
    await all_queued(rig, 1)
    left = asyncio.create_task(rig.complete(prompt=LONG, stream=True))
    await all_queued(rig, 2)
    left.cancel()
    await all_queued(rig, 1)
    gate.set()
    assert [(await response).status_code for response in asked] == [200] * 3
    assert prefills(rig) == 3
    assert 'tandem_disconnects_total{phase="queue"} 1.0' in (await rig.http.get("/metrics")).text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_the_wait_in_the_queue(folder: Path, stream: bool) -> None:
    async with running_rig(folder, request_timeout_s=0.4) as rig:
        close_gate(rig)
        asked = [asyncio.create_task(rig.complete(prompt=LONG, stream=stream)) for _ in range(4)]
        responses = await asyncio.gather(*asked)
        codes = [(r.status_code, r.json()["error"]["code"]) for r in responses]
        assert codes == [(504, "deadline_exceeded")] * 4


async def test_the_longest_wait_ends_with_429(folder: Path) -> None:
    async with running_rig(folder, worker_prompt_tokens=150, queue_wait_s=0.2) as rig:
        gate = close_gate(rig)
        asked = send(rig, 2)
        await all_queued(rig, 0)
        (late,) = await asyncio.gather(*send(rig, 1))
        assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_full")
        assert int(late.headers["retry-after"]) >= 1
        gate.set()
        assert [(await response).status_code for response in asked] == [200] * 2


async def test_a_measured_rate_refuses_who_would_wait_too_long_and_says_when_to_come(
    folder: Path,
) -> None:
    async with running_rig(folder, worker_prompt_tokens=150, queue_wait_s=8.0) as rig:
        # One hundred tokens in at least a second.
        rig.prefills[0].plan.at("first_token", 1.0)
        assert (await rig.complete(prompt=LONG)).status_code == 200
        gate = close_gate(rig)
        asked = send(rig, 2)
        await all_queued(rig, 0, sent=3)
        asked += send(rig, 1, [1] * 1_000)
        await all_queued(rig, 1, sent=3)
        (late,) = await asyncio.gather(*send(rig, 1))
        assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_full")
        # 1,200 tokens are ahead and take 12 s or more; 8 s are allowed.
        assert int(late.headers["retry-after-ms"]) >= 3_900
        metrics = (await rig.http.get("/metrics")).text
        assert 'tandem_rejected_total{reason="queue_full"} 1.0' in metrics
        gate.set()
        assert [(await response).status_code for response in asked] == [200] * 3


async def test_without_workers_the_queue_is_no_place_to_wait(rig: Rig) -> None:
    close_gate(rig)
    asked = send(rig, 4)
    await all_queued(rig, 2)
    await rig.prefills[0].stop()
    responses = await asyncio.gather(*asked)
    assert {response.status_code for response in responses} == {503}
    assert await queue_depth(rig) == 0


async def test_retries_end_with_their_budget(folder: Path) -> None:
    async with running_rig(folder, prefills=2, breaker_failures=999, retry_budget=0.0) as rig:
        for worker in rig.prefills:
            worker.plan.at("call", UnavailableError("stopping", code="draining"), times=999)
        responses = await asyncio.gather(*send(rig, 20))
        assert {response.status_code for response in responses} == {503}
        calls = sum(rig.methods(worker).count("Prefill") for worker in rig.prefills)
        assert calls == 20 + 10
        metrics = (await rig.http.get("/metrics")).text
        assert 'tandem_retries_total{reason="draining"} 10.0' in metrics
        denied = next(x for x in metrics.splitlines() if x.startswith("tandem_retries_denied_t"))
        assert float(denied.split()[1]) >= 10


async def test_prompts_that_are_read_at_one_moment_are_meant_for_different_decode_workers(
    folder: Path,
) -> None:
    async with running_rig(folder, decodes=2) as rig:
        gate = close_gate(rig)
        asked = send(rig, 1, [1] * 300)
        await all_queued(rig, 0, sent=1)
        asked += send(rig, 3)
        await all_queued(rig, 0, sent=4)
        workers = rig.gateway.workers
        loads = [workers.in_flight_tokens(decode.worker_id) for decode in rig.decodes]
        assert sorted(loads) == [300, 300], "the three short ones are beside the long one"
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert [workers.in_flight_tokens(decode.worker_id) for decode in rig.decodes] == [0, 0]
