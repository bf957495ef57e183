"""Commits and pushes that the decode service refuses; a refusal leaves nothing behind."""

import asyncio
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from decode_service.app import DecodeServer
from protos.tandem.v1 import decode_pb2
from shared.errors import (
    HandoffError,
    StaleWriteError,
    TandemError,
)
from shared.model.transformer import Transformer
from shared.rpc.status import error_from_rpc
from shared.types.handoff import HandoffKey, HandoffState
from shared.types.kv_manifest import LayoutSpec, PositionKind, SegmentKind
from shared.types.sampling import SampledToken
from tests.support.decode_server import direct_tokens
from tests.support.prefill_peer import (
    Faults,
    PrefillPeer,
    Prepared,
    prepare,
    with_positions,
)
from tests.support.waiting import until

KEY = HandoffKey("request", 1)


async def refusal_of_reserve(call: object) -> TandemError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return error_from_rpc(caught.value)


# --- commits ----------------------------------------------------------------------------------


def changes(name: str, prepared: Prepared) -> dict[str, object]:
    manifest = prepared.manifest
    first, *rest = manifest.segments
    every: dict[str, dict[str, object]] = {
        "next_position": {"next_position": 30},
        "prompt_tokens": {"prompt_tokens": 61, "next_position": 61},
        "kept_tokens": {"pruning": replace(manifest.pruning, kept_tokens=29)},
        "pruned": {"pruning": replace(manifest.pruning, pruned=False)},
        "layout_kind": {
            "layouts": (manifest.layouts[0], LayoutSpec(kind=PositionKind.PER_HEAD, slots=30))
        },
        "layer_layouts": {"layer_layouts": (0, 1, 1, 1, 1, 0)},
        "segment_offset": {"segments": (replace(first, offset=64), *rest)},
        "segment_missing": {"segments": tuple(rest)},
        "segment_length": {"segments": (replace(first, length=first.length - 4), *rest)},
        "segment_kind": {"segments": (replace(first, kind=SegmentKind.POSITIONS), *rest)},
        "checksum": {"segments": (replace(first, crc32=first.crc32 ^ 1), *rest)},
        "prompt_hash": {"prompt_hash": "0" * 64},
        "no_first_token": {"first_tokens": ()},
        "first_tokens_come_and_follow": {"first_tokens_follow": True},
        "first_token_unknown": {"first_tokens": (SampledToken(token_id=512),)},
        "model": {"model": replace(manifest.model, model_hash="f" * 64)},
    }
    return every[name]


REASONS = {
    "next_position": "manifest.next_position",
    "prompt_tokens": "manifest.prompt_tokens",
    "kept_tokens": "manifest.prompt_tokens",
    "pruned": "manifest.layouts",
    "layout_kind": "manifest.layouts",
    "layer_layouts": "manifest.layouts",
    "segment_offset": "manifest.segments",
    "segment_missing": "manifest.segments",
    "segment_length": "manifest.segments",
    "segment_kind": "manifest.segments",
    "checksum": "manifest.segments.crc32",
    "prompt_hash": "manifest.prompt_hash",
    "no_first_token": "manifest.first_tokens",
    "first_tokens_come_and_follow": "manifest.first_tokens",
    "first_token_unknown": "manifest.first_tokens",
    "model": "manifest.model",
}


@pytest.mark.parametrize("name", REASONS)
async def test_false_promises_are_refused_by_name(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared, name: str
) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared)
    manifest = peer.manifest(prepared, **changes(name, prepared))
    answer = await peer.commit(KEY, grant, prepared, manifest=manifest)
    assert answer.rejected.param == REASONS[name]
    assert answer.rejected.code == "kv_transfer_failed"
    assert server.core.worker.table.idle, "the slab and the pages were dropped"
    late = await peer.commit(KEY, grant, prepared)
    assert late.WhichOneof("result") == "rejected"


async def test_prompt_ids_of_another_length_are_refused(
    peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared)
    answer = await peer.commit(KEY, grant, prepared, prompt_ids=[1, 2, 3])
    assert answer.rejected.param == "prompt_token_ids"


@pytest.mark.parametrize("mode", ["shared", "layer", "head"])
async def test_every_byte_of_every_segment_is_checked(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, mode: str
) -> None:
    damaged = prepare(tiny_model, mode=mode)
    for index, segment in enumerate(damaged.plan.segments):
        key = HandoffKey(f"{mode}-{index}")
        grant = await peer.reserve(key, damaged)
        where = segment.offset + (segment.length - 1) * (index % 2)
        await peer.push(grant, damaged, Faults(flip_byte=where))
        answer = await peer.commit(key, grant, damaged)
        assert answer.rejected.param == "manifest.segments.crc32", segment
    assert server.core.worker.table.idle


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("descending", [*range(28), 59, 58]),
        ("repeated", [*range(28), 28, 28]),
        ("out of range", [*range(29), 60]),
        ("negative", [-1, *range(28), 59]),
        ("without the last token", [*range(29), 58]),
    ],
)
async def test_positions_must_make_sense(
    peer: PrefillPeer, prepared: Prepared, name: str, positions: list[int]
) -> None:
    odd = with_positions(prepared, positions)
    grant = await peer.reserve(KEY, odd)
    await peer.push(grant, odd)
    answer = await peer.commit(KEY, grant, odd)
    assert answer.rejected.param == "manifest.positions", name


async def test_wrong_slot_or_generation_is_not_obeyed_at_all(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared)
    for wrong in (
        replace(grant, generation=grant.generation + 1),
        replace(grant, slot=grant.slot + 1),
    ):
        answer = await peer.commit(KEY, wrong, prepared)
        assert "another slot or generation" in answer.rejected.message
    assert server.core.worker.table.counters.late == 2
    answer = await peer.commit(KEY, grant, prepared)
    assert answer.WhichOneof("result") == "adopted", "the real one still counts"
    seen = await peer.decode(peer.decode_request(KEY, prepared))
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_a_short_push_is_refused(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared, Faults(truncate=len(prepared.image) - 512))
    answer = await peer.commit(KEY, grant, prepared)
    assert answer.rejected.param == "manifest.segments.crc32"
    assert server.core.worker.table.idle


async def test_a_commit_without_the_end_of_the_push_is_refused(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    sender = await peer.open(grant)
    await sender.write(0, prepared.image)
    answer = await peer.commit(KEY, grant, prepared)
    assert "push did not end" in answer.rejected.message
    assert server.core.worker.table.num_quarantined == 1, "its writer may still be alive"
    await sender.abort()
    await until(lambda: server.core.worker.table.idle)


async def test_rows_are_to_come_while_a_commit_is_under_way(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    worker = server.core.worker
    grant = await peer.reserve(KEY, prepared)
    sender = await peer.open(grant)
    await sender.write(0, prepared.image)
    committing = asyncio.create_task(peer.commit(KEY, grant, prepared))
    await until(worker._rows_to_come)
    await sender.seal()
    assert (await committing).WhichOneof("result") == "adopted"
    assert not worker._rows_to_come()
    wrong = replace(grant, slot=grant.slot + 1)
    assert (await peer.commit(KEY, wrong, prepared)).WhichOneof("result") == "rejected"
    assert not worker._rows_to_come()
    await peer.abort(KEY)


async def test_unknown_manifests_are_answers_too(peer: PrefillPeer, prepared: Prepared) -> None:
    answer = await peer.stub.Commit(decode_pb2.CommitRequest())
    assert answer.WhichOneof("result") == "rejected"
    grant = await peer.reserve(KEY, prepared)
    answer = await peer.commit(HandoffKey("other"), grant, prepared)
    assert "not known" in answer.rejected.message
    await peer.abort(KEY)


# --- pushes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [Faults(generation_shift=1), Faults(slot_shift=1)])
async def test_pushes_into_other_slots_or_generations_are_refused(
    peer: PrefillPeer, prepared: Prepared, faults: Faults
) -> None:
    grant = await peer.reserve(KEY, prepared)
    with pytest.raises(HandoffError):
        await peer.push(grant, prepared, faults)
    await peer.push(grant, prepared)
    answer = await peer.commit(KEY, grant, prepared)
    assert answer.WhichOneof("result") == "adopted", "the refused push touched nothing"
    await peer.abort(KEY)


async def test_a_broken_push_ends_the_handoff(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    table = server.core.worker.table
    sender = await peer.open(grant)
    await sender.write(0, prepared.image[:100])
    # A push that is cut before its first byte landed is no push yet: its lease ends it.
    await until(lambda: table.find(KEY).state is HandoffState.STREAMING)
    await sender.abort()
    await until(lambda: server.core.worker.table.idle)
    assert server.core.worker.table.counters.aborted == 1
    answer = await peer.commit(KEY, grant, prepared)
    assert "is aborted" in answer.rejected.message
    request = peer.reserve_request(KEY, prepared)
    assert isinstance(await refusal_of_reserve(peer.stub.Reserve(request)), StaleWriteError)


async def test_writes_after_an_abort_are_refused_and_touch_nobody(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    sender = await peer.open(grant)
    await sender.write(0, prepared.image[:64])
    # A call has a connection of its own and may overtake the bytes.
    await until(lambda: server.core.worker.table.find(KEY).state is HandoffState.STREAMING)
    assert not await peer.abort(KEY), "a writer is alive: honest is not drained"
    assert not await peer.abort(KEY)
    other = HandoffKey("other")
    await peer.hand_over(other, prepared)

    async def keep_writing() -> None:
        for _ in range(20):
            await sender.write(0, b"\xff" * len(prepared.image))
            await asyncio.sleep(0.01)

    with pytest.raises(HandoffError):
        await keep_writing()
    await sender.abort()
    await until(lambda: server.core.worker.table.num_quarantined == 0)
    assert await peer.abort(KEY), "now it is drained"
    seen = await peer.decode(peer.decode_request(other, prepared))
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
