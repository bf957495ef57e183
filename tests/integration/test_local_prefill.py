"""A decode worker that reads prompts itself: the pair's tokens, and nothing left of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from decode_service.app import DecodeServer
from decode_service.config import DecodeConfig
from shared.errors import ConfigError
from tests.support.decode_server import decode_server, local_engine
from tests.support.gates import GatedBlocks, GatedSteps
from tests.support.pools import Pool, running_pool
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

READS: dict[str, Any] = {"local_prefill_tokens": 4096}
ASKED: dict[str, dict[str, Any]] = {
    "full": {"tandem": {"mode": "full"}},
    "CLAA": {"tandem": {"mode": "prune", "keep_rate": 0.3, "min_keep": 16}},
    "CLAA and DELTA": {"tandem": {"mode": "both", "keep_rate": 0.3, "min_keep": 16}},
    "seeded": {"temperature": 0.9, "seed": 7},
    "three answers": {"n": 3, "temperature": 0.9, "seed": 7},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tiny_model_dir: Path, profile: Path) -> AsyncIterator[Pool]:
    async with running_pool(tiny_model_dir, profile) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(tiny_model_dir: Path, profile: Path) -> AsyncIterator[Pool]:
    async with running_pool(tiny_model_dir, profile, prefills=0, decode=READS) as pool:
        yield pool


async def answered(pool: Pool, **fields: Any) -> dict[str, Any]:
    """A whole answer."""
    response = await pool.http.post("/v1/completions", json=pool.body(stream=False, **fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


@pytest.mark.parametrize("asked", ASKED)
async def test_the_same_tokens_as_the_pair(pair: Pool, alone: Pool, asked: str) -> None:
    theirs = await answered(pair, logprobs=1, **ASKED[asked])
    ours = await answered(alone, logprobs=1, **ASKED[asked])
    assert len(ours["choices"]) == len(theirs["choices"]) == ASKED[asked].get("n", 1)
    for our, their in zip(ours["choices"], theirs["choices"], strict=True):
        probs = [choice.pop("logprobs") for choice in (our, their)]
        assert our == their
        assert probs[0]["tokens"] == probs[1]["tokens"]
        # Rows join a batch when they come, and its size rounds the last digits.
        assert probs[0]["token_logprobs"] == pytest.approx(probs[1]["token_logprobs"], abs=1e-4)
    for figure in ("prompt_tokens", "kept_tokens", "kv_bytes", "attended", "dense"):
        assert ours["tandem"][figure] == theirs["tandem"][figure]
    assert theirs["tandem"]["route"].startswith("pair: ")
    assert ours["tandem"]["route"].startswith("local: ")
    assert ours["tandem"]["transport"] == "loopback"
    if "CLAA" in asked:
        assert ours["tandem"]["kept_tokens"] < ours["tandem"]["prompt_tokens"]
    await alone.nothing_left()


async def test_streams_and_phases_are_those_of_the_pair(pair: Pool, alone: Pool) -> None:
    theirs, ours = await pair.ask(), await alone.ask()
    assert (ours.text, ours.done, ours.error) == (theirs.text, True, None)
    assert set(ours.report["phases_ms"]) == set(theirs.report["phases_ms"])
    await alone.nothing_left()


async def test_a_structured_answer(pair: Pool, alone: Pool) -> None:
    shape: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True},
    }
    body = {"messages": [{"role": "user", "content": "a number"}], "temperature": 0}
    texts = []
    for pool in (pair, alone):
        asked = body | {"response_format": shape, "max_tokens": 30}
        response = await pool.http.post("/v1/chat/completions", json=asked)
        assert response.status_code == 200, response.text
        texts.append(response.json()["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_a_client_that_leaves(alone: Pool, where: str) -> None:
    (server,) = alone.decodes
    compute, engine = local_engine(server)._services.compute, server.core.worker.engine
    blocks, steps = GatedBlocks(compute._runner), GatedSteps(engine._runner)
    inner = compute._runner, engine._runner
    compute._runner, engine._runner = blocks, steps  # type: ignore[assignment]
    gate = blocks.gate if where == "prefill" else steps.gate
    gate.arm(2)
    try:
        client = asyncio.create_task(alone.ask(max_tokens=40))
        await until(lambda: gate.reached)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        if where == "prefill":
            await until(lambda: all(j.stopping() for j in local_engine(server)._jobs.values()))
        else:
            await until(lambda: len(engine._commands) > 0)
    finally:
        gate.open_for_good()
    await alone.nothing_left()
    assert gate.done == 2, "the piece that ran was the last one"
    compute._runner, engine._runner = inner


async def test_a_deadline_ends_it(tiny_model_dir: Path, profile: Path) -> None:
    async with running_pool(
        tiny_model_dir, profile, prefills=0, decode=READS, request_timeout_s=0.5
    ) as pool:
        compute = local_engine(pool.decodes[0])._services.compute
        blocks = GatedBlocks(compute._runner)
        compute._runner = blocks  # type: ignore[assignment]
        blocks.gate.arm(1)
        try:
            response = await pool.http.post("/v1/completions", json=pool.body(stream=False))
        finally:
            blocks.gate.open_for_good()
        assert (response.status_code, response.json()["error"]["code"]) == (
            504,
            "deadline_exceeded",
        )


async def test_a_drain_finishes_what_was_begun_and_takes_nothing_new(
    tiny_model_dir: Path, profile: Path
) -> None:
    async with running_pool(tiny_model_dir, profile, prefills=0, decode=READS) as pool:
        right = await pool.ask()
        (server,) = pool.decodes
        compute = local_engine(server)._services.compute
        blocks = GatedBlocks(compute._runner)
        compute._runner = blocks  # type: ignore[assignment]
        blocks.gate.arm(1)
        asked = asyncio.create_task(pool.ask())
        await until(lambda: blocks.gate.reached)
        server.begin_drain()
        await until(lambda: server.present_load().draining)
        assert server.present_load().local_prefill_tokens == 0
        await until(lambda: pool.gateway.workers.readers() == 0)
        refused = await pool.http.post("/v1/completions", json=pool.body(stream=False))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        blocks.gate.open_for_good()
        answer = await asked
        assert (answer.text, answer.error) == (right.text, None)
        await asyncio.wait_for(server.finished.wait(), timeout=10)


async def test_the_pair_and_local_prefill_share_a_worker(
    tiny_model_dir: Path, profile: Path
) -> None:
    """Prompts that others read and its own, side by side, in the same pages."""
    async with running_pool(tiny_model_dir, profile, decode=READS, short_prompt_tokens=40) as pool:
        short, long = "The quick brown fox.", pool.body()["prompt"]
        lone = [await pool.ask(prompt=prompt) for prompt in (short, long)]
        assert lone[0].report["route"].startswith("local: ")
        assert lone[1].report["route"].startswith("pair: ")
        both = await asyncio.gather(*(pool.ask(prompt=p) for p in (short, long) * 3))
        assert [each.text for each in both] == [each.text for each in lone] * 3


async def test_a_card_in_redis_tells_what_it_reads(tiny_model_dir: Path, profile: Path) -> None:
    redis = RedisServer()
    redis.start()
    try:
        reads = READS | {"redis_url": redis.url}
        async with running_pool(
            tiny_model_dir, profile, prefills=0, decode=reads, redis_url=redis.url
        ) as pool:
            await until(lambda: pool.gateway.workers.readers(512) == 1)
            answer = await pool.ask()
            assert "no_prefill_worker" in answer.report["route"]
    finally:
        redis.stop()


async def test_its_metrics_stand_beside_those_of_the_worker(alone: Pool) -> None:
    await alone.ask()
    (server,) = alone.decodes
    async with httpx.AsyncClient(base_url=f"http://{server.admin_address}") as http:
        own = (await http.get("/metrics")).text
        beside = (await http.get("/metrics/prefill")).text
    assert "tandem_step_seconds_count" in own
    assert "tandem_claa_tokens_in_total" in beside
    assert 'tandem_kv_bytes_total{transport="loopback"}' in beside
    assert 'role="prefill"' in beside


async def test_a_worker_without_the_engine_has_an_empty_page_in_its_place(
    tiny_model_dir: Path, profile: Path
) -> None:
    async with (
        decode_server(tiny_model_dir, profile) as server,
        httpx.AsyncClient(base_url=f"http://{server.admin_address}") as http,
    ):
        page = await http.get("/metrics/prefill")
    assert page.is_success
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert not page.text.strip()


async def test_a_stalled_engine_offers_nothing(tiny_model_dir: Path, profile: Path) -> None:
    async with decode_server(tiny_model_dir, profile, **READS) as server:
        local: Any = server._local
        local._watchdog.healthy = False
        assert server.present_load().local_prefill_tokens == 0
        assert "local prefill makes no progress" in server._note()
        local._watchdog.healthy = True


async def test_a_worker_offers_no_more_than_its_context(
    tiny_model_dir: Path, profile: Path
) -> None:
    async with decode_server(tiny_model_dir, profile, local_prefill_tokens=1 << 30) as server:
        context = server.core.memory.capacity.max_model_len
        assert server.present_load().local_prefill_tokens == context


async def test_a_process_without_the_engine_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match="tandem decode"):
        DecodeServer(DecodeConfig(local_prefill_tokens=64))
