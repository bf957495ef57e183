"""Reservations and Decode calls that the decode service refuses, and what that leaves behind."""

import asyncio

import grpc
import grpc.aio
import pytest

from decode_service.app import DecodeServer
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
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions
from tests.support.decode_server import direct_tokens
from tests.support.prefill_peer import (
    PrefillPeer,
    Prepared,
)

KEY = HandoffKey("request", 1)


async def error_of(call: object) -> TandemError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return error_from_rpc(caught.value)


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
    await peer.abort(KEY)


async def test_reservations_that_can_never_fit_are_the_callers_mistake(
    peer: PrefillPeer, prepared: Prepared
) -> None:
    for change, kind in (
        ({"prompt_tokens": 1024, "kept_tokens": 1024}, ContextLengthError),
        ({"slab_bytes": 1 << 30}, InvalidRequestError),
        ({"num_branches": 129}, InvalidRequestError),
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
    await peer.abort(keys[0])
    answer = await peer.stub.Reserve(peer.reserve_request(key, prepared, max_new_tokens=200))
    assert answer.WhichOneof("result") == "grant"
    for held in [*keys, key]:
        assert await peer.abort(held)


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


async def test_a_branch_without_room_is_refused(peer: PrefillPeer, prepared: Prepared) -> None:
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
    await peer.abort(KEY)


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
