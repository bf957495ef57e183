"""Several answers that share one prompt's pages, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from decode_service.app import DecodeServer
from protos.tandem.v1 import common_pb2
from shared.errors import HandoffError
from shared.kv.geometry import pages_for
from shared.model.transformer import Transformer
from shared.rpc.status import error_from_rpc
from shared.types.handoff import HandoffKey
from shared.types.sampling import SamplingParams, StopConditions
from tests.support.decode_rows import make_cache, make_runner, place
from tests.support.decode_server import SPARSITY, decode_server, settle
from tests.support.prefill_peer import Decoded, PrefillPeer, Prepared, prepare

KEY = HandoffKey("request", 1)
SAMPLED = SamplingParams(temperature=1.0, seed=11)
FIRSTS = [5, 77, 123]
NEW = 40
STOP = StopConditions(max_tokens=NEW)


@pytest.fixture
async def server(
    tiny_model_dir: Path, profile: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DecodeServer]:
    """Its lease is too long to end by itself, except where that is the subject."""
    lease_s = getattr(request, "param", 60.0)
    async with decode_server(tiny_model_dir, profile, adopt_lease_s=lease_s) as running:
        yield running


async def decode(
    peer: PrefillPeer, prepared: Prepared, branch: int, *, stop: StopConditions = STOP
) -> Decoded:
    """One branch to its end."""
    request = peer.decode_request(
        KEY, prepared, sampling=SAMPLED, stop=stop, branch=branch, first_token=FIRSTS[branch]
    )
    return await peer.decode(request)


def alone(model: Transformer, prepared: Prepared, branch: int) -> list[int]:
    """What the runner generates when the branch has the prompt to itself."""
    cache = make_cache(model)
    row = place(
        model,
        cache,
        prepared.prompt,
        first_token=FIRSTS[branch],
        sparsity=SPARSITY,
        sampling=SAMPLED,
    )
    row.branch, row.prompt_ids = branch, tuple(prepared.ids)
    runner = make_runner(model, cache)
    return [runner.step([row])[0].token_id for _ in range(NEW - 1)]


def used_pages(server: DecodeServer) -> list[int]:
    return [pool.pages.num_used for pool in server.core.memory.cache.pools.values()]


@pytest.mark.parametrize("mode", ["identity", "shared", "head"])
@pytest.mark.parametrize(("tokens", "kept"), [(150, 100), (160, 96), (33, 17)])
async def test_branches_generate_what_each_does_alone(
    tiny_model: Transformer, peer: PrefillPeer, mode: str, tokens: int, kept: int
) -> None:
    prepared = prepare(tiny_model, mode=mode, tokens=tokens, kept=kept)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=3)
    answers = await asyncio.gather(*(decode(peer, prepared, branch) for branch in range(3)))
    for branch, answer in enumerate(answers):
        assert answer.end.reason == common_pb2.FINISH_REASON_LENGTH
        assert answer.tokens == alone(tiny_model, prepared, branch)
    assert len({tuple(answer.tokens) for answer in answers}) == 3


async def test_the_prompt_is_held_once(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=150)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=3)
    whole, own = pages_for(150 + NEW - 1), pages_for(15 + NEW - 1)
    assert used_pages(server) == [whole + 2 * own] * 2
    await decode(peer, prepared, 1)
    assert used_pages(server) == [whole + own] * 2, "a branch that ended keeps nothing of its own"
    await decode(peer, prepared, 0)
    assert used_pages(server) == [whole + own] * 2, "another branch still reads the prompt"
    await decode(peer, prepared, 2)
    assert used_pages(server) == [0, 0]


async def test_one_stream_that_is_closed_ends_its_branch_alone(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="shared", tokens=150, kept=100)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=3)
    call = peer.stub.Decode(
        peer.decode_request(KEY, prepared, stop=STOP, branch=1, first_token=FIRSTS[1])
    )
    await call.read()
    others = [asyncio.create_task(decode(peer, prepared, branch)) for branch in (0, 2)]
    call.cancel()
    for branch, answer in zip((0, 2), await asyncio.gather(*others), strict=True):
        assert answer.tokens == alone(tiny_model, prepared, branch)
    await settle(lambda: server.core.worker.table.idle)


async def test_cancel_ends_all_branches(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="shared", tokens=150, kept=100)
    await peer.hand_over(KEY, prepared, max_new_tokens=250, branches=3)
    stop = StopConditions(max_tokens=250)
    running = [asyncio.create_task(decode(peer, prepared, b, stop=stop)) for b in range(2)]
    await settle(lambda: server.core.worker.num_generations == 2)
    assert await peer.cancel(KEY), "two run, one waits for its call"
    for answer in await asyncio.gather(*running):
        assert answer.end.reason == common_pb2.FINISH_REASON_CANCELLED
    await settle(lambda: server.core.worker.table.idle)


@pytest.mark.parametrize("server", [1.0], indirect=True)
async def test_a_branch_nobody_asks_for_ends_with_its_lease(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=60)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=2)
    await decode(peer, prepared, 0)
    await settle(lambda: server.core.worker.table.idle)
    assert server.core.worker.table.counters.aborted == 0, "nobody but the lease ended it"


async def test_a_branch_decodes_once(tiny_model: Transformer, peer: PrefillPeer) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=60)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=2)
    await decode(peer, prepared, 1)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the status is looked at below
        await decode(peer, prepared, 1)
    assert isinstance(error_from_rpc(raised.value), HandoffError)  # type: ignore[arg-type]
    assert len((await decode(peer, prepared, 0)).tokens) == NEW - 1


async def test_a_refused_branch_leaves_the_others(
    tiny_model: Transformer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=60)
    await peer.hand_over(KEY, prepared, max_new_tokens=NEW, branches=2)
    with pytest.raises(Exception, match="reserved for"):
        await decode(peer, prepared, 0, stop=StopConditions(max_tokens=NEW + 1))
    assert len((await decode(peer, prepared, 1)).tokens) == NEW - 1


async def test_room_for_all_branches_or_none(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer
) -> None:
    prepared = prepare(tiny_model, mode="identity", tokens=150)
    other = HandoffKey("other", 1)
    await peer.hand_over(other, prepared, max_new_tokens=NEW, branches=6)
    before = used_pages(server)
    request = peer.reserve_request(KEY, prepared, max_new_tokens=NEW, branches=12)
    answer = await peer.stub.Reserve(request)
    assert answer.busy.reason == "pages_full"
    assert used_pages(server) == before
    assert server.core.memory.slab.num_leases == 0
    await peer.abort(other)
