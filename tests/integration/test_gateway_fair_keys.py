"""Keys beside each other: fair turns, a way in for everybody, limits of one's own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.keys.file import write_keys
from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
from gateway.principal import KeyLimits
from tests.support.gateway_rig import Rig, running_rig, until

LIMITS = {
    "greedy": KeyLimits(),
    "modest": KeyLimits(),
    "tiny": KeyLimits(requests_per_minute=1, tokens_per_minute=50),
}
PROMPT = [1] * 100


class Keyed:
    """A rig that asks for keys, whose worker is stuck until `gate` is set."""

    def __init__(self, rig: Rig, secrets: dict[str, str]) -> None:
        self.rig = rig
        self.gate = asyncio.Event()
        self._secrets = secrets
        rig.prefills[0].plan.at("first_token", self.gate, times=99)

    def send(self, key: str, *, prompt: list[int] | None = None) -> asyncio.Task[httpx.Response]:
        body = {"model": "simulated", "prompt": prompt or PROMPT, "max_tokens": 2}
        headers = {"authorization": f"Bearer {self._secrets[key]}", "x-request-id": key}
        return asyncio.create_task(
            self.rig.http.post("/v1/completions", json=body, headers=headers)
        )

    async def queued(self, tokens: int) -> None:
        """Waits until so many prompt tokens wait for their start."""

        async def holds() -> bool:
            admission = self.rig.gateway._entrance.pool.admission
            return self.rig.prefills[0].running == 2 and admission.queued_tokens == tokens

        await until(holds)

    def order(self) -> list[str]:
        """Keys in the order in which their prompts came to the worker."""
        calls = [call for call in self.rig.simulation.calls if call.method == "Prefill"]
        return [call.handoff_id.partition("-")[0] for call in calls]


@pytest.fixture
async def keyed(folder: Path, tmp_path: Path) -> AsyncIterator[Keyed]:
    secrets = {key_id: new_secret(key_id) for key_id in LIMITS}
    path = tmp_path / "keys.json"
    write_keys(
        path,
        {
            key_id: KeyRecord(
                key_id=key_id, sha256=hash_of(secret), created=utc_now(), limits=LIMITS[key_id]
            )
            for key_id, secret in secrets.items()
        },
    )
    async with running_rig(
        folder, api_keys=path, queue_tokens=1_000, worker_prompt_tokens=150
    ) as rig:
        yield Keyed(rig, secrets)


async def test_a_key_that_floods_neither_keeps_others_out_nor_goes_before_them(
    keyed: Keyed,
) -> None:
    asked = [keyed.send("greedy") for _ in range(2)]
    await keyed.queued(0)
    asked += [keyed.send("greedy") for _ in range(10)]
    await keyed.queued(1_000)
    assert (await keyed.send("greedy")).status_code == 429
    modest = keyed.send("modest")
    await keyed.queued(1_100)
    keyed.gate.set()
    assert (await modest).status_code == 200
    assert {(await response).status_code for response in asked} == {200}
    order = keyed.order()
    # Two were at the worker already, and one more may have been its turn.
    assert order.index("modest") <= 3
    assert order.count("greedy") == 12


async def test_each_key_has_its_own_limits(keyed: Keyed) -> None:
    keyed.gate.set()
    first = await keyed.send("tiny", prompt=[1] * 10)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert (await keyed.send("tiny", prompt=[1] * 10)).status_code == 429
    other = await keyed.send("modest")
    assert other.status_code == 200
    assert "x-ratelimit-limit-requests" not in other.headers
