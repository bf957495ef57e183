"""What the decode service refuses, and that a refusal leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from decode_service.app import DecodeServer
from protos.tandem.v1 import decode_pb2
from shared.errors import (
    ContextLengthError,
    DeadlineError,
    HandoffError,
    InvalidRequestError,
    ManifestError,
    StaleWriteError,
    TandemError,
)
from shared.model.transformer import Transformer
from shared.rpc.status import error_from_rpc
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import LayoutSpec, PositionKind, SegmentKind
from shared.types.options import RequestOptions
from shared.types.sampling import SampledToken, SamplingParams, StopConditions
from tests.support.decode_server import decode_server, direct_tokens, settle, write_profile
from tests.support.prefill_peer import (
    Faults,
    PrefillPeer,
    Prepared,
    prefill_peer,
    prepare,
    with_positions,
)

KEY = HandoffKey("request", 1)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("profile"))


@pytest.fixture
async def server(tiny_model_dir: Path, profile: Path) -> AsyncIterator[DecodeServer]:
    async with decode_server(tiny_model_dir, profile, commit_wait_s=0.5) as running:
        yield running


@pytest.fixture
async def peer(server: DecodeServer) -> AsyncIterator[PrefillPeer]:
    async with prefill_peer(server.core.identity, server.address) as made:
        yield made


@pytest.fixture(scope="module")
def prepared(tiny_model: Transformer) -> Prepared:
    return prepare(tiny_model, mode="shared", tokens=60, kept=30)


async def error_of(call: object) -> TandemError:
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
    await settle(lambda: server.core.worker.table.idle)


async def test_unknown_manifests_are_answers_too(peer: PrefillPeer, prepared: Prepared) -> None:
    answer = await peer.stub.Commit(decode_pb2.CommitRequest())
    assert answer.WhichOneof("result") == "rejected"
    grant = await peer.reserve(KEY, prepared)
    answer = await peer.commit(HandoffKey("other"), grant, prepared)
    assert "not known" in answer.rejected.message
    await abort(peer)


# --- pushes -----------------------------------------------------------------------------------


async def abort(peer: PrefillPeer, key: HandoffKey = KEY) -> bool:
    from shared.wire.identity import handoff_to_pb

    answer = await peer.stub.Abort(
        decode_pb2.AbortRequest(handoff=handoff_to_pb(key), reason="test")
    )
    return answer.drained


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
    await abort(peer)


async def test_a_broken_push_ends_the_handoff(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared, Faults(break_off=True))
    await settle(lambda: server.core.worker.table.idle)
    assert server.core.worker.table.counters.aborted == 1
    answer = await peer.commit(KEY, grant, prepared)
    assert "is aborted" in answer.rejected.message
    request = peer.reserve_request(KEY, prepared)
    assert isinstance(await error_of(peer.stub.Reserve(request)), StaleWriteError)


async def test_writes_after_an_abort_are_refused_and_touch_nobody(
    tiny_model: Transformer, server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    sender = await peer.open(grant)
    await sender.write(0, prepared.image[:64])
    assert not await abort(peer), "a writer is alive: honest is not drained"
    assert not await abort(peer)
    other = HandoffKey("other")
    await peer.hand_over(other, prepared)

    async def keep_writing() -> None:
        for _ in range(20):
            await sender.write(0, b"\xff" * len(prepared.image))
            await asyncio.sleep(0.01)

    with pytest.raises(HandoffError):
        await keep_writing()
    await sender.abort()
    await settle(lambda: server.core.worker.table.num_quarantined == 0)
    assert await abort(peer), "now it is drained"
    seen = await peer.decode(peer.decode_request(other, prepared))
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


# --- reservations -----------------------------------------------------------------------------


async def test_reserve_is_idempotent_and_compares_the_model(
    peer: PrefillPeer, prepared: Prepared
) -> None:
    first = await peer.reserve(KEY, prepared)
    again = await peer.reserve(KEY, prepared)
    assert (first.slot, first.generation) == (again.slot, again.generation)
    request = peer.reserve_request(HandoffKey("other"), prepared)
    request.model.rope = "another"
    error = await error_of(peer.stub.Reserve(request))
    assert isinstance(error, ManifestError)
    assert "rope" in error.message
    await abort(peer)


async def test_reservations_that_can_never_fit_are_the_callers_mistake(
    peer: PrefillPeer, prepared: Prepared
) -> None:
    for change, kind in (
        ({"prompt_tokens": 1024, "kept_tokens": 1024}, ContextLengthError),
        ({"slab_bytes": 1 << 30}, InvalidRequestError),
        ({"num_branches": 2}, InvalidRequestError),
        ({"kept_tokens": 0}, InvalidRequestError),
    ):
        request = peer.reserve_request(KEY, prepared)
        for name, value in change.items():
            setattr(request, name, value)
        assert isinstance(await error_of(peer.stub.Reserve(request)), kind)


async def test_busy_says_why_and_frees_up(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    keys: list[HandoffKey] = []
    while True:
        key = HandoffKey(f"r{len(keys)}")
        answer = await peer.stub.Reserve(peer.reserve_request(key, prepared, max_new_tokens=200))
        if answer.WhichOneof("result") == "busy":
            break
        keys.append(key)
    assert answer.busy.reason in {"slab_full", "pages_full"}
    assert answer.busy.retry_after_ms > 0
    assert server.core.worker.table.num_live == len(keys) > 1
    await abort(peer, keys[0])
    answer = await peer.stub.Reserve(peer.reserve_request(key, prepared, max_new_tokens=200))
    assert answer.WhichOneof("result") == "grant"
    for held in [*keys, key]:
        assert await abort(peer, held)


# --- decode calls -----------------------------------------------------------------------------


UNFIT = {
    "max_tokens": {"stop": StopConditions(max_tokens=17)},
    "logit_bias": {"sampling": SamplingParams(logit_bias=((512, 1.0),))},
    "stop_token_ids": {"stop": StopConditions(max_tokens=9, token_ids=(512,), min_tokens=3)},
    "tandem.page_budget": {"options": RequestOptions(page_budget=2)},
    "tandem.recency_pages": {"options": RequestOptions(recency_pages=0)},
}


@pytest.mark.parametrize("names", UNFIT)
async def test_decode_calls_that_do_not_fit_name_the_field(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared, names: str
) -> None:
    await peer.hand_over(KEY, prepared)
    request = peer.decode_request(KEY, prepared, **UNFIT[names])  # type: ignore[arg-type]
    error = await error_of(peer.decode(request))
    assert isinstance(error, InvalidRequestError)
    assert error.param == names
    assert server.core.worker.table.idle, "nobody else will ask for it"


async def test_repetition_penalty_needs_the_prompt(peer: PrefillPeer, prepared: Prepared) -> None:
    grant = await peer.reserve(KEY, prepared)
    await peer.push(grant, prepared)
    assert (await peer.commit(KEY, grant, prepared, prompt_ids=[])).WhichOneof("result") == (
        "adopted"
    )
    sampling = SamplingParams(repetition_penalty=1.2)
    error = await error_of(peer.decode(peer.decode_request(KEY, prepared, sampling=sampling)))
    assert error.param == "repetition_penalty"


async def test_a_second_branch_is_refused(peer: PrefillPeer, prepared: Prepared) -> None:
    await peer.hand_over(KEY, prepared)
    request = peer.decode_request(KEY, prepared)
    request.branch = 1
    error = await error_of(peer.decode(request))
    assert (type(error), error.param) == (InvalidRequestError, "n")


async def test_decode_of_an_unknown_or_second_handoff(
    peer: PrefillPeer, prepared: Prepared
) -> None:
    error = await error_of(peer.decode(peer.decode_request(KEY, prepared)))
    assert isinstance(error, StaleWriteError)
    await peer.hand_over(KEY, prepared, max_new_tokens=100)
    stop = StopConditions(max_tokens=100)
    reading = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared, stop=stop)))
    await asyncio.sleep(0.05)
    error = await error_of(peer.decode(peer.decode_request(KEY, prepared)))
    assert isinstance(error, HandoffError)
    assert len((await reading).tokens) == 99, "the first caller keeps its answer"


async def test_a_decode_call_waits_for_its_commit(
    tiny_model: Transformer, peer: PrefillPeer, prepared: Prepared
) -> None:
    grant = await peer.reserve(KEY, prepared)
    early = asyncio.create_task(peer.decode(peer.decode_request(KEY, prepared)))
    await asyncio.sleep(0.1)
    await peer.push(grant, prepared)
    assert (await peer.commit(KEY, grant, prepared)).WhichOneof("result") == "adopted"
    assert (await early).tokens == direct_tokens(tiny_model, prepared, num_tokens=15)


async def test_that_wait_is_bounded(peer: PrefillPeer, prepared: Prepared) -> None:
    await peer.reserve(KEY, prepared)
    error = await error_of(peer.decode(peer.decode_request(KEY, prepared)))
    assert isinstance(error, StaleWriteError)
    await abort(peer)


async def test_a_deadline_holds_before_and_during_generation(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    await peer.reserve(KEY, prepared)
    error = await error_of(peer.decode(peer.decode_request(KEY, prepared, deadline_ms=50)))
    assert isinstance(error, DeadlineError)
    assert server.core.worker.table.idle
    other = HandoffKey("other")
    await peer.hand_over(other, prepared, max_new_tokens=900)
    stop = StopConditions(max_tokens=900)
    request = peer.decode_request(other, prepared, stop=stop, deadline_ms=60)
    seen = await peer.decode(request)
    assert seen.end.error.code == "deadline_exceeded"
    assert 0 < len(seen.tokens) < 899
