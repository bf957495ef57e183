"""Fixed addresses: wrong roles and slow answers."""

import asyncio
from dataclasses import replace

from shared.discovery.card import WorkerCard
from shared.discovery.static import StaticDiscovery, StaticSettings
from shared.errors import UnreachableError
from tests.support.waiting import until
from tests.support.worker_cards import CARD


async def test_a_worker_of_another_role_is_left_out() -> None:
    async def fetch(_address: str) -> WorkerCard:
        return CARD

    discovery = StaticDiscovery({"prefill": ["h:1"]}, fetch=fetch)
    await discovery.start()
    assert discovery.cards("prefill") == []
    await discovery.close()


async def test_a_worker_whose_port_is_closed_is_forgotten_at_once() -> None:
    calls = 0

    async def fetch(_address: str) -> WorkerCard:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise UnreachableError("nobody listens at h:1: it stopped; start it again")
        return CARD

    settings = StaticSettings(refresh_s=0.05, forget_after=100)
    discovery = StaticDiscovery({"decode": ["h:1"]}, fetch=fetch, settings=settings)
    await discovery.start()
    assert len(discovery.cards("decode")) == 1
    await until(lambda: discovery.cards("decode") == [])
    assert calls == 2
    await until(lambda: len(discovery.cards("decode")) == 1)
    await discovery.close()


async def test_one_silent_round_does_not_forget_a_worker() -> None:
    hang = False
    calls = 0

    async def fetch(_address: str) -> WorkerCard:
        nonlocal calls
        calls += 1
        if hang:
            await asyncio.sleep(60)
        return replace(CARD, running=calls)

    settings = StaticSettings(refresh_s=0.01, timeout_s=0.03, forget_after=3)
    discovery = StaticDiscovery({"decode": ["h:1"]}, fetch=fetch, settings=settings)
    await discovery.start()
    hang = True
    before = calls
    await until(lambda: calls == before + 2)
    assert len(discovery.cards("decode")) == 1
    await until(lambda: discovery.cards("decode") == [])
    hang = False
    await until(lambda: len(discovery.cards("decode")) == 1)
    await discovery.close()
