"""Who reads a prompt, and what the gateway tells of it, before simulated workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.errors import OverloadedError, UnavailableError
from tests.support.gateway_rig import Rig, running_rig, until
from tests.support.tiny_tokenizer import write_tokenizer_folder

SHORT, LONG = [1] * 8, [1] * 60
FULL = OverloadedError("the queue is full; wait", retry_after_s=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def reading_rig(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """Decode workers that read up to 100 tokens; 16 tokens are short."""
    values: dict[str, Any] = {"reads_tokens": 100, "short_prompt_tokens": 16}
    async with running_rig(folder, **(values | settings)) as rig:
        yield rig


async def route(rig: Rig, prompt: list[int]) -> str:
    """How a prompt was answered."""
    response = await rig.complete(prompt=prompt)
    assert response.status_code == 200, response.text
    return str(response.json()["tandem"]["route"])


async def decisions(rig: Rig) -> dict[str, int]:
    """Of the health answer; those of the metric are the same."""
    told: dict[str, int] = (await rig.http.get("/health/ready")).json()["local_prefill"][
        "decisions"
    ]
    metrics = (await rig.http.get("/metrics")).text
    for reason, count in told.items():
        line = f'tandem_local_prefills_total{{reason="{reason}"}} {float(count)}'
        assert (line in metrics) == (count > 0)
    return {reason: count for reason, count in told.items() if count}


async def test_a_short_prompt_skips_the_pair_and_a_longer_one_does_not(folder: Path) -> None:
    async with reading_rig(folder) as rig:
        assert (await route(rig, SHORT)).startswith(
            "local: d0 reads the prompt itself, short_prompt; least_loaded; pruned: profile"
        )
        assert (await route(rig, LONG)).startswith("pair: p0 -> d0")
        assert await decisions(rig) == {"short_prompt": 1}
        assert rig.methods(rig.decodes[0]).count("Prefill") == 1
        assert rig.methods(rig.prefills[0]).count("Prefill") == 1
        health = (await rig.http.get("/health/ready")).json()
        assert health["local_prefill"]["workers"] == 1
        assert health["local_prefill"]["short_prompt_tokens"] == 16
        read = {worker["worker_id"]: worker["local_prefill_tokens"] for worker in health["workers"]}
        assert read == {"p0": 0, "d0": 100}


async def test_the_access_record_tells_who_read_it(folder: Path) -> None:
    async with reading_rig(folder) as rig:
        await route(rig, SHORT)
        url = f"http://{rig.gateway.admin_address}/debug/requests"
        (summary,) = (await rig.http.get(url)).json()["requests"]
        details = (await rig.http.get(f"{url}/{summary['request_id']}")).json()
        assert "short_prompt" in details["report"]["route"]
        (tried,) = details["tries"]
        assert (tried["prefill"], tried["decode"]) == ("d0", "d0")


async def test_nothing_is_read_locally_where_no_worker_offers_it(folder: Path) -> None:
    async with running_rig(folder) as rig:
        assert (await route(rig, SHORT)).startswith("pair: p0 -> d0")
        assert await decisions(rig) == {}


async def test_no_prompt_is_short_when_the_setting_says_so(folder: Path) -> None:
    async with reading_rig(folder, short_prompt_tokens=0) as rig:
        assert (await route(rig, SHORT)).startswith("pair: p0 -> d0")


async def test_without_prefill_workers_decode_workers_serve_what_they_can_read(
    folder: Path,
) -> None:
    async with reading_rig(folder, prefills=0) as rig:
        assert (await rig.http.get("/health/ready")).status_code == 200
        assert "no_prefill_worker" in await route(rig, LONG)
        assert "no_prefill_worker" in await route(rig, SHORT)
        too_long = await rig.complete(prompt=[1] * 101)
        assert too_long.status_code == 503
        assert too_long.json()["error"]["code"] == "no_prefill_worker"
        assert "up to 100 tokens themselves and this one has 101" in too_long.text
        assert await decisions(rig) == {"no_prefill_worker": 2}
        metrics = (await rig.http.get("/metrics")).text
        assert 'tandem_ready_workers{role="prefill"} 1.0' in metrics


async def test_a_pool_that_drains_leaves_prompts_to_decode_workers(folder: Path) -> None:
    async with reading_rig(folder) as rig:
        rig.prefills[0].draining = True

        async def noticed() -> bool:
            return rig.gateway.workers.taking_prompts() == 0

        await until(noticed)
        assert "no_prefill_worker" in await route(rig, LONG)


async def test_the_only_workers_drain_and_the_refusal_says_so(folder: Path) -> None:
    async with reading_rig(folder, prefills=0) as rig:
        rig.decodes[0].draining = True

        async def noticed() -> bool:
            return rig.gateway.workers.readers() == 0

        await until(noticed)
        refused = await rig.complete(prompt=SHORT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "every decode worker is draining" in refused.text
        assert rig.gateway.workers.missing() == "draining"


async def test_a_refusal_of_the_last_prefill_worker_is_made_good(folder: Path) -> None:
    async with reading_rig(folder) as rig:
        rig.prefills[0].plan.at("call", FULL)
        assert "prefill_refused; least_loaded" in await route(rig, LONG)
        assert await decisions(rig) == {"prefill_refused": 1}
        rig.prefills[0].plan.at("call", FULL)
        refused = await rig.complete(prompt=[1] * 101)
        assert refused.status_code == 429, "it is longer than the decode worker reads"


async def test_another_prefill_worker_goes_before_the_decode_worker(folder: Path) -> None:
    async with reading_rig(folder, prefills=2) as rig:
        for worker in rig.prefills:
            worker.plan.at("call", FULL)
        assert "prefill_refused" in await route(rig, LONG)
        assert all("Prefill" in rig.methods(worker) for worker in rig.prefills)


async def test_a_prefill_worker_that_dies_in_mid_prompt_is_made_good(folder: Path) -> None:
    """The first token was shown: the decode worker goes on from it."""
    async with reading_rig(folder) as rig:
        right = (await rig.complete(prompt=LONG)).json()["choices"]
        rig.prefills[0].plan.at("transfer", UnavailableError("gone; retry"))
        response = await rig.complete(prompt=LONG)
        assert response.status_code == 200
        assert "prefill_refused" in response.json()["tandem"]["route"]
        assert response.json()["choices"] == right


async def test_a_full_queue_of_the_gateway_is_made_good(folder: Path) -> None:
    async with reading_rig(folder, queue_tokens=10) as rig:
        rig.prefills[0].plan.at("queued", 1.0)
        first = asyncio.create_task(rig.complete(prompt=LONG))
        await rig.simulation.seen("p0", "Prefill")
        assert "queue_full" in await route(rig, LONG)
        assert (await first).json()["tandem"]["route"].startswith("pair: ")
        assert await decisions(rig) == {"queue_full": 1}


async def test_a_wait_in_vain_is_made_good(folder: Path) -> None:
    async with reading_rig(folder, queue_wait_s=0.2, worker_prompt_tokens=1) as rig:
        hold = asyncio.Event()
        rig.prefills[0].plan.at("started", hold, times=2)
        running = [asyncio.create_task(rig.complete(prompt=LONG)) for _ in range(2)]

        async def both_sent() -> bool:
            return rig.methods(rig.prefills[0]).count("Prefill") == 2

        await until(both_sent)
        assert "queue_full" in await route(rig, LONG)
        hold.set()
        assert all(answer.status_code == 200 for answer in await asyncio.gather(*running))


async def test_the_line_for_decode_workers_is_bounded_as_well(folder: Path) -> None:
    async with reading_rig(folder, prefills=0, queue_tokens=10) as rig:
        rig.decodes[0].plan.at("queued", 0.5)
        first = asyncio.create_task(rig.complete(prompt=LONG))
        await rig.simulation.seen("d0", "Prefill")
        refused = await rig.complete(prompt=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert refused.headers["retry-after"]
        assert (await first).status_code == 200


async def test_a_decode_worker_that_is_full_hands_a_short_prompt_to_the_pair(folder: Path) -> None:
    async with reading_rig(folder) as rig:
        rig.decodes[0].plan.at("call", FULL)
        assert (await route(rig, SHORT)).startswith("pair: p0 -> d0")


async def test_one_that_dies_is_called_a_decode_worker(folder: Path) -> None:
    async with reading_rig(folder, prefills=0, max_retries=0) as rig:
        rig.decodes[0].plan.at("started", UnavailableError("gone; retry"))
        response = await rig.complete(prompt=SHORT)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_decode_worker"


async def test_a_client_that_leaves_is_told_to_the_worker(folder: Path) -> None:
    async with reading_rig(folder, prefills=0) as rig:
        rig.decodes[0].plan.at("started", 30.0)
        client = asyncio.create_task(rig.complete(prompt=SHORT))
        await rig.simulation.seen("d0", "Prefill")
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        await rig.simulation.seen("d0", "closed")
        await rig.simulation.seen("d0", "Cancel")
        entrance = rig.gateway._entrance

        async def empty() -> bool:
            line = entrance.local.dispatcher
            return (entrance.queued_requests, line.sent_prompts, line.waiting) == (0, 0, 0)

        await until(empty)


async def test_a_worker_that_reads_a_prompt_counts_the_reading_and_the_answer_to_come(
    folder: Path,
) -> None:
    """So it is the second choice for as long as a prompt of the same length is read elsewhere."""
    async with reading_rig(folder, decodes=2, short_prompt_tokens=60, queue_tokens=1000) as rig:
        reader, other = rig.decodes
        reading, answering = asyncio.Event(), asyncio.Event()
        for worker in rig.decodes:
            worker.plan.at("started", reading)
            worker.plan.at("token:1", answering)
        tokens = rig.gateway.workers.in_flight_tokens
        local = asyncio.create_task(rig.complete(prompt=LONG))

        async def is_read() -> bool:
            return any("Prefill" in rig.methods(worker) for worker in rig.decodes)

        await until(is_read)
        if "Prefill" in rig.methods(other):
            reader, other = other, reader
        assert (tokens(reader.worker_id), tokens(other.worker_id)) == (120, 0)
        apart = [1] * 61  # not short
        rig.prefills[0].plan.at("started", reading)
        beside = [asyncio.create_task(rig.complete(prompt=apart))]
        await rig.simulation.seen("p0", "Prefill")
        assert (tokens(reader.worker_id), tokens(other.worker_id)) == (120, 61)
        beside.append(asyncio.create_task(rig.complete(prompt=apart)))

        async def both_sent() -> bool:
            return rig.methods(rig.prefills[0]).count("Prefill") == 2

        await until(both_sent)
        assert (tokens(reader.worker_id), tokens(other.worker_id)) == (120, 122)
        reading.set()

        async def is_answered() -> bool:
            return "Decode" in rig.methods(reader)

        await until(is_answered)
        assert tokens(reader.worker_id) == 60, "it has read it"
        answering.set()
        assert all(a.status_code == 200 for a in await asyncio.gather(local, *beside))
        assert [tokens(worker.worker_id) for worker in rig.decodes] == [0, 0]
