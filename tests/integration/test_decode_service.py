"""The decode service end to end: real gRPC, the real transport, a tiny model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from decode_service.app import DecodeServer
from protos.tandem.v1 import common_pb2
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.options import Mode, RequestOptions
from shared.types.sampling import SamplingParams, StopConditions
from tests.support.decode_server import decode_server, direct_tokens
from tests.support.prefill_peer import PrefillPeer, prefill_peer, prepare
from tests.support.waiting import until

KEY = HandoffKey("request", 1)


@pytest.fixture
async def server(tiny_model_dir: Path, profile: Path) -> AsyncIterator[DecodeServer]:
    async with decode_server(tiny_model_dir, profile) as running:
        yield running


@pytest.mark.parametrize("mode", ["identity", "shared", "layer", "head"])
async def test_tokens_equal_the_runner_called_directly(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, mode: str
) -> None:
    prepared = prepare(tiny_model, mode=mode, tokens=150, kept=100)
    adopted = await peer.hand_over(KEY, prepared)
    assert adopted.lease_ms > 0
    seen = await peer.decode(peer.decode_request(KEY, prepared))
    assert seen.accepted == [server.worker_id]
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    assert seen.end.reason == common_pb2.FINISH_REASON_LENGTH
    assert seen.end.generated_tokens == 15
    assert 0 < seen.end.attended < seen.end.dense
    assert [phase.phase for phase in seen.end.phases] == ["decode_queue", "first_decode", "decode"]


async def test_modes_and_budgets_reach_the_runner(
    tiny_model: Transformer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=150)
    ends = {}
    for name, options in {
        "full": RequestOptions(mode=Mode.FULL),
        "sparse": RequestOptions(mode=Mode.SPARSE),
        "wide": RequestOptions(page_budget=6),
    }.items():
        key = HandoffKey(name)
        await peer.hand_over(key, prepared)
        ends[name] = (await peer.decode(peer.decode_request(key, prepared, options=options))).end
    assert ends["full"].attended == ends["full"].dense
    assert ends["sparse"].attended < ends["wide"].attended < ends["full"].attended


async def test_sampling_and_logprobs_are_passed_through(
    tiny_model: Transformer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model)
    sampling = SamplingParams(
        temperature=0.9, top_p=0.9, seed=11, repetition_penalty=1.3, logprobs=2
    )
    await peer.hand_over(KEY, prepared)
    seen = await peer.decode(peer.decode_request(KEY, prepared, sampling=sampling))
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15, sampling=sampling)
    assert all(value is not None and value < 0 for value in seen.logprobs)


async def test_eight_concurrent_equal_one_by_one(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = [
        prepare(tiny_model, mode=mode, tokens=40 + 11 * i, kept=30, seed=i)
        for i, mode in enumerate(["identity", "shared", "layer", "head"] * 2)
    ]

    async def one(index: int) -> list[int]:
        key = HandoffKey(f"request-{index}")
        await peer.hand_over(key, prepared[index])
        stop = StopConditions(max_tokens=8 + index)
        return (await peer.decode(peer.decode_request(key, prepared[index], stop=stop))).tokens

    together = await asyncio.gather(*(one(index) for index in range(8)))
    for index, tokens in enumerate(together):
        assert tokens == direct_tokens(tiny_model, prepared[index], num_tokens=7 + index)
    await until(lambda: server.core.worker.table.idle)
    assert server.core.worker.table.counters.released == 8


async def test_a_killed_client_frees_its_pages_within_one_step(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, tokens=60)
    await peer.hand_over(KEY, prepared, max_new_tokens=900)
    stop = StopConditions(max_tokens=900)
    async with prefill_peer(server.core.identity, server.address) as client:
        stream = client.stub.Decode(client.decode_request(KEY, prepared, stop=stop))
        async for response in stream:
            if response.WhichOneof("event") == "tokens":
                break
        assert server.core.worker.num_generations == 1
        stream.cancel()
    await until(lambda: server.core.worker.num_generations == 0)
    load = server.present_load()
    assert load.free_pages == load.total_pages


async def test_cancel_ends_a_generation_and_may_be_repeated(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model)
    await peer.hand_over(KEY, prepared, max_new_tokens=900)
    stop = StopConditions(max_tokens=900)
    reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
    await until(lambda: server.present_load().running == 1)
    assert await peer.cancel(KEY)
    seen = await reading
    assert seen.end.reason == common_pb2.FINISH_REASON_CANCELLED
    assert len(seen.tokens) == seen.end.generated_tokens < 900
    assert not await peer.cancel(KEY)
    assert not await peer.cancel(KEY)
