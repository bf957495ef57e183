"""Leases, endings in every phase and stop conditions of a decode service."""

import asyncio
import itertools
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos.tandem.v1 import common_pb2, decode_pb2
from shared.errors import HandoffError
from shared.model.transformer import Transformer
from shared.tokenizer.detokenizer import IncrementalDetokenizer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.handoff import HandoffKey, HandoffState
from shared.types.sampling import StopConditions
from tests.support.decode_server import (
    ServerPair,
    direct_tokens,
    holder,
)
from tests.support.prefill_peer import Prepared
from tests.support.waiting import until

KEY = HandoffKey("request", 1)


# --- leases -----------------------------------------------------------------------------------


async def test_a_silent_grant_expires_without_any_request(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(lease_s=0.2) as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        assert 0 < grant.lease_ms <= 200
        await until(lambda: server.core.worker.table.idle)
        assert server.core.worker.table.counters.expired == 1
        with pytest.raises(HandoffError):
            await peer.push(grant, prepared)
        answer = await peer.commit(KEY, grant, prepared)
        assert "is expired" in answer.rejected.message


async def test_heartbeats_keep_a_slow_push_alive(
    tiny_model: Transformer, pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(lease_s=0.6) as (_, peer):
        grant = await peer.reserve(KEY, prepared)
        sender = await peer.open(grant)
        half = len(prepared.image) // 2
        await sender.write(0, prepared.image[:half])
        await asyncio.sleep(1.5)
        await sender.write(half, prepared.image[half:])
        await sender.seal()
        answer = await peer.commit(KEY, grant, prepared)
        assert answer.WhichOneof("result") == "adopted"
        seen = await peer.decode(peer.decode_request(KEY, prepared))
        assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_adopted_kv_that_nobody_decodes_expires(pair: ServerPair, prepared: Prepared) -> None:
    async with pair(adopt_lease_s=0.2) as (server, peer):
        adopted = await peer.hand_over(KEY, prepared)
        assert 0 < adopted.lease_ms <= 200
        await until(lambda: server.core.worker.table.idle)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.decode(peer.decode_request(KEY, prepared))
        assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_a_quarantine_ends_by_itself(pair: ServerPair, prepared: Prepared) -> None:
    async with pair(quarantine_s=0.3) as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        sender = await peer.open(grant)
        await sender.write(0, prepared.image[:64])
        table = server.core.worker.table
        await until(lambda: table.find(KEY).state is HandoffState.STREAMING)
        assert not await peer.abort(KEY)
        assert server.core.memory.slab.quarantined_bytes > 0
        await until(lambda: table.idle)
        await sender.abort()


# --- endings, twice ---------------------------------------------------------------------------


async def test_commit_twice_at_once_and_again(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        answers = await asyncio.gather(*(peer.commit(KEY, grant, prepared) for _ in range(3)))
        answers.append(await peer.commit(KEY, grant, prepared))
        assert [answer.WhichOneof("result") for answer in answers] == ["adopted"] * 4
        assert server.core.worker.table.counters.adopted == 1
        assert await peer.abort(KEY)
        assert await peer.abort(KEY)
        assert server.core.worker.table.counters.aborted == 1


async def test_cancel_and_abort_in_every_phase(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        assert not await peer.cancel(KEY), "unknown"
        assert await peer.abort(KEY)
        keys = [HandoffKey(f"phase{i}") for i in range(3)]
        await peer.reserve(keys[0], prepared)
        await peer.push(await peer.reserve(keys[1], prepared), prepared)
        await peer.hand_over(keys[2], prepared)
        for key in keys:
            assert await peer.cancel(key)
            assert not await peer.cancel(key)
        assert server.core.worker.table.idle


async def test_an_early_abort_forbids_the_late_reservation(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        await peer.abort(KEY)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.reserve(KEY, prepared)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert server.core.worker.table.counters.late == 1


async def test_abort_during_the_copy_wins(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        hold, held = holder()
        blocked = asyncio.create_task(server.core.worker.engine.between_steps(held))
        committing = asyncio.create_task(peer.commit(KEY, grant, prepared))
        await until(lambda: server.core.worker.intake.num_tasks == 1)
        assert await peer.abort(KEY)
        assert not server.core.worker.table.idle, "the copy still uses slab and pages"
        hold.set()
        await blocked
        answer = await committing
        assert "aborted during its commit" in answer.rejected.message


async def test_a_committer_that_leaves_does_not_stop_the_copy(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        grant = await peer.reserve(KEY, prepared)
        await peer.push(grant, prepared)
        hold, held = holder()
        blocked = asyncio.create_task(server.core.worker.engine.between_steps(held))
        committing = asyncio.create_task(peer.commit(KEY, grant, prepared))
        await until(lambda: server.core.worker.intake.num_tasks == 1)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        hold.set()
        await blocked
        await until(lambda: server.core.worker.intake.num_tasks == 0)
        answer = await peer.commit(KEY, grant, prepared)
        assert answer.WhichOneof("result") == "adopted"
        await peer.abort(KEY)


async def test_a_client_that_leaves_while_it_waits_ends_the_handoff(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair() as (server, peer):
        await peer.reserve(KEY, prepared)
        call = peer.stub.Decode(peer.decode_request(KEY, prepared))
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(lambda: server.core.worker.table.idle)


# --- stop conditions --------------------------------------------------------------------------


async def test_a_first_token_that_already_ends_the_answer(
    pair: ServerPair, prepared: Prepared
) -> None:
    cases = {
        "limit": (StopConditions(max_tokens=1), common_pb2.FINISH_REASON_LENGTH, ""),
        "id": (
            StopConditions(max_tokens=9, token_ids=(prepared.first_token,)),
            common_pb2.FINISH_REASON_STOP,
            str(prepared.first_token),
        ),
    }
    async with pair() as (server, peer):
        for name, (stop, reason, match) in cases.items():
            key = HandoffKey(name)
            await peer.hand_over(key, prepared)
            seen = await peer.decode(peer.decode_request(key, prepared, stop=stop))
            assert (seen.tokens, seen.end.generated_tokens) == ([], 0)
            assert (seen.end.reason, seen.end.stop_match) == (reason, match)
        assert server.core.worker.table.counters.released == 2


async def test_stop_ids_min_tokens_and_stop_strings_end_at_the_exact_token(
    tiny_model: Transformer, tiny_model_dir: Path, pair: ServerPair, prepared: Prepared
) -> None:
    plain = direct_tokens(tiny_model, prepared, num_tokens=15)
    tokenizer = Tokenizer.from_folder(tiny_model_dir)
    stop_id = plain[4]
    first_at = plain.index(stop_id)
    async with pair() as (_, peer):

        async def run(name: str, **stop: object) -> tuple[list[int], decode_pb2.DecodeFinished]:
            key = HandoffKey(name)
            await peer.hand_over(key, prepared)
            conditions = StopConditions(**({"max_tokens": 16} | stop))  # type: ignore[arg-type]
            seen = await peer.decode(peer.decode_request(key, prepared, stop=conditions))
            return seen.tokens, seen.end

        tokens, end = await run("id", token_ids=(stop_id,))
        assert tokens == plain[: first_at + 1]
        assert (end.reason, end.stop_match) == (common_pb2.FINISH_REASON_STOP, str(stop_id))

        tokens, end = await run("min", token_ids=(stop_id,), min_tokens=first_at + 4)
        assert tokens[:first_at] == plain[:first_at]
        assert stop_id not in tokens[: first_at + 2], "banned until min_tokens"
        assert len(tokens) >= first_at + 3

        word, end_at = _a_word_of(tokenizer, [prepared.first_token, *plain])
        tokens, end = await run("string", strings=("not in there", word))
        assert (end.reason, end.stop_match) == (common_pb2.FINISH_REASON_STOP, word)
        assert tokens == plain[:end_at]


def _a_word_of(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, int]:
    """Two characters of a text, and the token with which they are complete."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    texts = list(itertools.accumulate(detokenizer.push([i]) for i in ids))
    whole = texts[-1]
    words = [whole[i : i + 2] for i in range(len(whole) // 2, len(whole) - 1)]
    word = next(word for word in words if "\ufffd" not in word)
    return word, next(i for i, text in enumerate(texts) if word in text)


async def test_the_context_end_is_a_length_end(
    tiny_model: Transformer, pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(max_model_len=64) as (_, peer):
        await peer.hand_over(KEY, prepared, max_new_tokens=500)
        stop = StopConditions(max_tokens=500)
        seen = await peer.decode(peer.decode_request(KEY, prepared, stop=stop))
        assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=3)
        assert seen.end.reason == common_pb2.FINISH_REASON_LENGTH
