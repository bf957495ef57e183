"""A real prefill worker and a real decode worker over gRPC, without a gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from decode_service.app import DecodeServer
from decode_service.engine.kv_cache import LengthGroup
from protos.tandem.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2
from shared.kv.geometry import pages_for
from shared.rpc.channel import open_channel
from tests.support.decode_server import assert_idle, decode_server, write_profile
from tests.support.pair import assert_same_tokens
from tests.support.prefill_worker import (
    Worker,
    kinds,
    prefill_worker,
    prompt_ids,
    prompt_request,
)
from tests.support.waiting import until

MAX_TOKENS = 12


@pytest.fixture
async def pair(tiny_model_dir: Path, tmp_path: Path) -> AsyncIterator[tuple[Worker, DecodeServer]]:
    profile = write_profile(tmp_path)
    async with (
        decode_server(tiny_model_dir, profile) as decode,
        prefill_worker(tiny_model_dir, profile=str(profile)) as prefill,
    ):
        yield prefill, decode


def request_to(
    decode: DecodeServer,
    token_ids: list[int],
    options: common_pb2.RequestOptions | None = None,
) -> prefill_pb2.PrefillRequest:
    target = prefill_pb2.DecodeTarget(worker_id="d", address=decode.address)
    stop = common_pb2.StopConditions(max_tokens=MAX_TOKENS)
    sampling = common_pb2.SamplingParams(temperature=0.0, logprobs=2)
    return prompt_request(
        token_ids, [], targets=[target], stop=stop, sampling=sampling, options=options
    )


async def answer(
    pair: tuple[Worker, DecodeServer],
    token_ids: list[int],
    options: common_pb2.RequestOptions | None = None,
    *,
    seen: list[Any] | None = None,
) -> list[common_pb2.SampledToken]:
    """First token from one worker, the others from the other; `seen` gets the prefill's events."""
    prefill, decode = pair
    request = request_to(decode, token_ids, options)
    events = await prefill.run(request)
    assert kinds(events)[-1] == "PrefillSealed"
    if seen is not None:
        seen += events
    tokens = [events[-2].tokens[0]]
    channel = open_channel(decode.address)
    try:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)
        call = stub.Decode(
            decode_pb2.DecodeRequest(
                handoff=request.handoff,
                first_token=tokens[0].token_id,
                sampling=request.sampling,
                stop=request.stop,
            )
        )
        async for response in call:
            tokens += response.tokens.tokens
    finally:
        await channel.close()
    released = await prefill.stub.Release(prefill_pb2.ReleaseRequest(handoff=request.handoff))
    assert released.released
    return tokens


async def test_eight_at_once_answer_as_one_by_one(pair: tuple[Worker, DecodeServer]) -> None:
    prompts = [prompt_ids(30 + 9 * seed, seed=seed) for seed in range(8)]
    alone = [await answer(pair, ids) for ids in prompts]
    together = await asyncio.gather(*(answer(pair, ids) for ids in prompts))
    assert all(len(tokens) == MAX_TOKENS for tokens in alone)
    for many, one in zip(together, alone, strict=True):
        assert_same_tokens(
            [token.token_id for token in many],
            [token.top[0].logprob - token.top[1].logprob for token in many],
            [token.token_id for token in one],
        )
    await pair[0].expect_idle()
    assert pair[0].engine.load().held_handoffs == 0


async def test_a_mass_ships_what_it_comes_to(pair: tuple[Worker, DecodeServer]) -> None:
    ids = prompt_ids(150)
    mass = common_pb2.RequestOptions(mass=0.5, min_rate=0.05, max_rate=0.9)
    mass.protect.add(start=20, end=30)
    events: list[Any] = []
    tokens = await answer(pair, ids, mass, seen=events)
    started = next(e for e in events if type(e).__name__ == "PrefillStarted")
    kept = events[-1].kept_tokens
    assert started.pruning.kept_tokens == 135
    assert (started.pruning.mass, started.pruning.protected_tokens) == (0.5, 10)
    assert 20 < kept < 135
    rate = common_pb2.RequestOptions(keep_rate=0.01, min_keep=kept)
    rate.protect.add(start=20, end=30)
    events.clear()
    expected = await answer(pair, ids, rate, seen=events)
    assert events[-1].kept_tokens == kept
    assert [t.token_id for t in tokens] == [t.token_id for t in expected]
    assert_idle(pair[1])


async def test_a_mass_gives_the_pages_back_that_it_does_not_need(
    pair: tuple[Worker, DecodeServer],
) -> None:
    prefill, decode = pair
    mass = common_pb2.RequestOptions(mass=0.5, min_rate=0.05, max_rate=0.9)
    request = request_to(decode, prompt_ids(150), mass)
    events = await prefill.run(request)
    rest = decode.core.memory.cache.pools[LengthGroup.REST].pages
    surplus = 135 - events[-1].kept_tokens
    assert surplus >= 16
    assert rest.num_used == pages_for(135 + MAX_TOKENS - 1) - surplus // 16
    async with open_channel(decode.address) as channel:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)
        await stub.Abort(decode_pb2.AbortRequest(handoff=request.handoff, reason="seen"))


async def test_protected_tokens_that_do_not_fit_are_the_callers_mistake(
    pair: tuple[Worker, DecodeServer],
) -> None:
    options = common_pb2.RequestOptions(keep_rate=0.2)
    options.protect.add(start=0, end=100)
    events = await pair[0].run(request_to(pair[1], prompt_ids(150), options))
    assert events[-1].code == "invalid_value"
    assert events[-1].param == "tandem.protect"


async def test_a_cancel_frees_both_sides(pair: tuple[Worker, DecodeServer]) -> None:
    prefill, decode = pair
    prefill.runner.gate.clear()
    call = prefill.stub.Prefill(request_to(decode, prompt_ids(90)))
    await prefill.runner.wait_reached()
    await until(lambda: not decode.core.worker.table.idle)
    call.cancel()
    await prefill.expect_idle()
    await until(lambda: decode.core.worker.table.idle)
    assert_idle(decode)
