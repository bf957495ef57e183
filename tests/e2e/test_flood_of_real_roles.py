"""Five hundred long prompts at once on whole processes: what it costs, and what comes out.

The promise in detail, with gates instead of chance, is in `integration/test_gateway_flood.py`; here
are real roles, their memory and their answers.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import pytest

from deploy.launch import ROLE_MODULES
from tests.fuzz.fleet import Patient, UpFleet
from tests.support.processes import UpProcess, running_up

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_200)]

PROMPTS = 500
TOKENS = 900
QUEUE_TOKENS = 20_000
MOST_GROWTH = 256 * 2**20
"""What a role may take beside what it has when idle, in bytes, however many clients come."""
MOST_DRIFT = 48 * 2**20
"""What the peak of a later flood may be above that of the first one."""

SETTINGS = {
    "TANDEM_GATEWAY__QUEUE_TOKENS": str(QUEUE_TOKENS),
    "TANDEM_GATEWAY__QUEUE_WAIT_S": "600",
}


def prompt(number: int) -> list[int]:
    """Token ids that no other prompt has."""
    rng = Random(number)
    return [rng.randrange(400) for _ in range(TOKENS)]


@dataclass
class Flood:
    """What one flood brought about."""

    answers: dict[int, httpx.Response] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """Statuses as they came."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Largest resident bytes of each role."""
    prefilled: int = 0
    """Prompts that the prefill worker computed meanwhile."""

    @property
    def statuses(self) -> Counter[int]:
        return Counter(self.order)

    @property
    def served_at_last_refusal(self) -> int:
        """Answers that were there before the last refusal came."""
        last = max(index for index, status in enumerate(self.order) if status != 200)
        return sum(status == 200 for status in self.order[:last])


class Roles:
    """A running `tandem up` under observation."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        self.fleet = UpFleet(up)
        self.patient = Patient(self.fleet.addresses)
        self.processes = {
            role: psutil.Process(up.pid(package)) for role, package in ROLE_MODULES.items()
        }

    def rss(self) -> dict[str, int]:
        return {role: process.memory_info().rss for role, process in self.processes.items()}

    def prefilled(self) -> int:
        return sum('"prompt sealed"' in line for line in self.up.err)

    @contextmanager
    def watched(self, flood: Flood) -> Iterator[None]:
        """Keeps the largest memory that it sees."""
        over = threading.Event()
        flood.peaks = self.rss()

        def watch() -> None:
            while not over.wait(0.02):
                for role, rss in self.rss().items():
                    flood.peaks[role] = max(flood.peaks[role], rss)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    async def ask(self, http: httpx.AsyncClient, number: int) -> httpx.Response:
        body = {
            "model": "tiny",
            "prompt": prompt(number),
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
        }
        return await http.post("/v1/completions", json=body)

    async def flood(self, http: httpx.AsyncClient) -> Flood:
        flood, before = Flood(), self.prefilled()

        async def one(number: int) -> None:
            response = await self.ask(http, number)
            flood.answers[number] = response
            flood.order.append(response.status_code)

        with self.watched(flood):
            await asyncio.gather(*(one(number) for number in range(PROMPTS)))
        assert await self.patient.idle() == {}
        flood.prefilled = self.prefilled() - before
        return flood


def text_of(response: httpx.Response) -> Any:
    return response.json()["choices"][0]["text"]


def check_refusals(flood: Flood) -> None:
    refused = [answer for answer in flood.answers.values() if answer.status_code != 200]
    assert len(refused) > PROMPTS / 2, "the queue holds a small part of them"
    for answer in refused:
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
    # Early: not one of them cost the prefill worker anything.
    assert flood.prefilled == flood.statuses[200]
    assert flood.statuses[200] >= QUEUE_TOKENS // TOKENS


async def check(roles: Roles) -> list[Flood]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=roles.up.url, timeout=600, limits=limits) as http:
        assert (await roles.ask(http, PROMPTS)).status_code == 200
        idle = roles.rss()
        floods = []
        for _ in range(3):
            floods.append(await roles.flood(http))
            # At once after it the next one is served.
            assert (await roles.ask(http, PROMPTS)).status_code == 200
            check_refusals(floods[-1])
        for role, rss in idle.items():
            first, *later = [flood.peaks[role] for flood in floods]
            assert first < rss + MOST_GROWTH, role
            assert max(later) < first + MOST_DRIFT, role
        # Those let in got the answer that they get alone.
        for number, answer in floods[0].answers.items():
            if answer.status_code == 200:
                assert text_of(answer) == text_of(await roles.ask(http, number))
    told = {role: f"{rss / 2**20:.0f}" for role, rss in idle.items()}
    print(f"idle MiB {told}")
    return floods


def test_five_hundred_long_prompts_three_times(tiny_model_dir: Path) -> None:
    arguments = ("--model", str(tiny_model_dir), "--log-format", "json")
    with running_up(*arguments, environment=SETTINGS) as up:
        roles = Roles(up)
        for flood in asyncio.run(check(roles)):
            peaks = {role: f"{rss / 2**20:.0f}" for role, rss in flood.peaks.items()}
            print(
                f"statuses {dict(flood.statuses)}, prefilled {flood.prefilled}, answers before the "
                f"last refusal {flood.served_at_last_refusal}, peak MiB {peaks}"
            )
        assert roles.fleet.complaints() == []
