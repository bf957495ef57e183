"""A flood of long prompts: bounded, early refusals, those let in finish, recovery at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_rig import Rig, running_rig, until

PROMPT = [1] * 600
QUEUE_TOKENS = 20_000
WORKERS = 2
AT_WORKERS = 2 * WORKERS
"""Long prompts that workers get; all of them start, none ends before the gate opens."""


@dataclass
class Flood:
    """Requests on their way to a rig whose workers are stuck."""

    rig: Rig
    gate: asyncio.Event
    http: httpx.AsyncClient
    tasks: list[asyncio.Task[httpx.Response]] = field(default_factory=list)
    peak_tokens: int = 0

    def send(self, count: int) -> None:
        """Sends them all at once."""
        self.tasks += [asyncio.create_task(self._ask()) for _ in range(count)]

    async def _ask(self) -> httpx.Response:
        body = {"model": "simulated", "prompt": PROMPT, "max_tokens": 4}
        return await self.http.post("/v1/completions", json=body)

    async def settled(self) -> None:
        """Waits until every request was refused, waits in the queue, or is at a worker."""

        async def holds() -> bool:
            depth, tokens = self._queue()
            self.peak_tokens = max(self.peak_tokens, tokens)
            done = sum(task.done() for task in self.tasks)
            running = sum(worker.running for worker in self.rig.prefills)
            return done + depth + running == len(self.tasks) and running == AT_WORKERS

        await until(holds, timeout_s=100.0)

    def _queue(self) -> tuple[int, int]:
        admission = self.rig.gateway._entrance.pool.admission
        return admission.queued_requests, admission.queued_tokens

    async def statuses(self) -> Counter[int]:
        """All answers, after the gate opened."""
        self.gate.set()
        return Counter([(await task).status_code for task in self.tasks])

    def refusals(self) -> list[httpx.Response]:
        """Answers that are there while no worker has finished anything."""
        return [task.result() for task in self.tasks if task.done()]


@asynccontextmanager
async def flooded(folder: Path, requests: int) -> AsyncIterator[Flood]:
    """A rig in which `requests` prompts were sent at once and nothing can finish."""
    async with running_rig(
        folder,
        prefills=WORKERS,
        decodes=WORKERS,
        queue_tokens=QUEUE_TOKENS,
        worker_prompt_tokens=1_000,
        queue_wait_s=100.0,
    ) as rig:
        gate = asyncio.Event()
        for worker in rig.prefills:
            worker.plan.at("first_token", gate, times=requests)
        async with httpx.AsyncClient(
            base_url=rig.url,
            timeout=100.0,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        ) as http:
            flood = Flood(rig, gate, http)
            flood.send(requests)
            await flood.settled()
            yield flood


async def withstand(folder: Path, requests: int) -> None:
    """The whole promise, without a look at the clock."""
    async with flooded(folder, requests) as flood:
        refusals = flood.refusals()
        accepted = requests - len(refusals)
        room = QUEUE_TOKENS // len(PROMPT)
        # Bounded: the queue and what the workers hold, however many come.
        assert room <= accepted <= room + AT_WORKERS
        assert flood.peak_tokens <= QUEUE_TOKENS
        assert sum(worker.running for worker in flood.rig.prefills) == AT_WORKERS
        # Early: refused while not one prompt had been computed, with advice.
        for response in refusals:
            assert response.status_code == 429
            assert response.json()["error"]["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
        # Those let in finish.
        statuses = await flood.statuses()
        assert statuses == {200: accepted, 429: len(refusals)}
        # At once after it the next one is served, and nothing is left behind.
        assert (await flood.rig.complete(prompt=PROMPT)).status_code == 200
        admission = flood.rig.gateway._entrance.pool.admission
        assert (admission.queued_requests, admission.queued_tokens) == (0, 0)
        dispatcher = flood.rig.gateway._entrance.pool.dispatcher
        assert (dispatcher.sent_prompts, dispatcher.sent_tokens, dispatcher.waiting) == (0, 0, 0)
        metrics = (await flood.rig.http.get("/metrics")).text
        assert f'tandem_rejected_total{{reason="queue_full"}} {float(len(refusals))}' in metrics


async def test_five_hundred_long_prompts_at_once(folder: Path) -> None:
    await withstand(folder, 500)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_three_thousand_long_prompts_at_once_and_again(folder: Path) -> None:
    for _ in range(2):
        await withstand(folder, 3_000)


async def test_clients_that_leave_in_a_flood_make_room(folder: Path) -> None:
    async with flooded(folder, 100) as flood:
        waiting = [task for task in flood.tasks if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

        async def nothing_waits() -> bool:
            return flood.rig.gateway._entrance.pool.admission.queued_tokens == 0

        await until(nothing_waits)
        flood.gate.set()
        assert (await flood.rig.complete(prompt=PROMPT)).status_code == 200
