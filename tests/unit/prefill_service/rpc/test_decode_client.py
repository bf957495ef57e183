"""Calls to decode workers: what their answers and failures become."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio
import pytest

from prefill_service.engine.job import Target
from prefill_service.engine.sender import Busy, ReserveTerms
from prefill_service.rpc import decode_client
from prefill_service.rpc.decode_client import DecodeClient
from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.errors import DeadlineError, HandoffError, StaleWriteError, UnavailableError
from shared.model.transformer import Transformer
from shared.rpc.server import build_server
from shared.transport.base import Grant
from shared.types.handoff import HandoffKey
from shared.types.model_identity import ModelIdentity
from tests.support.decode_peer import DecodePeer
from tests.support.prefill_peer import prepare

MODEL = ModelIdentity(
    name="m", model_hash="h", dtype="float32", num_layers=6, num_kv_heads=2, head_dim=16, rope="r"
)
TERMS = ReserveTerms(
    prompt_tokens=10, kept_tokens=4, whole_layers=2, slab_bytes=1024, max_new_tokens=5
)


@pytest.fixture
async def peer() -> AsyncIterator[DecodePeer]:
    peer = DecodePeer(MODEL)
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def client() -> AsyncIterator[DecodeClient]:
    client = DecodeClient(model=MODEL, timeout_s=5.0)
    yield client
    await client.close()


async def test_grant_busy_abort_and_a_late_reserve(client: DecodeClient, peer: DecodePeer) -> None:
    target, key = Target("d0", peer.address), HandoffKey("h")
    grant = await client.reserve(target, key=key, terms=TERMS)
    assert isinstance(grant, Grant)
    assert (grant.lease_ms, grant.transports) == (30_000, ("grpc",))
    assert grant.incarnation == peer.incarnation
    asked = peer._live[key].request
    assert (asked.prompt_tokens, asked.kept_tokens, asked.whole_layers) == (10, 4, 2)
    assert (asked.slab_bytes, asked.max_new_tokens, asked.num_branches) == (1024, 5, 1)
    assert asked.model.model_hash == "h"
    peer.script.busy = 1
    busy = await client.reserve(target, key=HandoffKey("i"), terms=TERMS)
    assert busy == Busy(0.01, "slab_full")
    assert await client.abort(target, key=key, reason="test")
    with pytest.raises(StaleWriteError):
        await client.reserve(target, key=key, terms=TERMS)


async def test_nobody_there(client: DecodeClient) -> None:
    with pytest.raises(UnavailableError):
        await client.abort(Target("d0", "127.0.0.1:1"), key=HandoffKey("h"), reason="test")


class Silent(decode_pb2_grpc.DecodeServiceServicer):
    """Answers with empty messages, or never."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.answer = asyncio.Event()

    async def Reserve(  # noqa: N802
        self,
        _request: decode_pb2.ReserveRequest,
        _context: grpc.aio.ServicerContext[object, object],
    ) -> decode_pb2.ReserveResponse:
        self.called.set()
        await self.answer.wait()
        return decode_pb2.ReserveResponse()

    Commit = Decode = Abort = Cancel = Reserve  # type: ignore[assignment]


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, Target]]:
    servicer = Silent()
    server = build_server(host="127.0.0.1", port=0, service_names=[])
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server.server)
    await server.start()
    yield servicer, Target("d0", server.address)
    await server.stop()


async def test_an_answer_of_a_newer_version(
    client: DecodeClient, silent: tuple[Silent, Target]
) -> None:
    silent[0].answer.set()
    with pytest.raises(HandoffError, match="nothing this version knows"):
        await client.reserve(silent[1], key=HandoffKey("h"), terms=TERMS)


async def test_a_channel_that_closes_is_a_failure_not_a_cancel(
    client: DecodeClient, silent: tuple[Silent, Target]
) -> None:
    call = asyncio.create_task(client.reserve(silent[1], key=HandoffKey("h"), terms=TERMS))
    await silent[0].called.wait()
    await client.close()
    with pytest.raises(UnavailableError):
        await call


async def test_a_peer_that_hangs_holds_an_abort_up_for_a_moment_only(
    client: DecodeClient, silent: tuple[Silent, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_client, "ABORT_SECONDS", 0.1)
    async with asyncio.timeout(2.0):
        with pytest.raises(DeadlineError):
            await client.abort(silent[1], key=HandoffKey("h"), reason="t")


async def test_a_cancel_stays_a_cancel(client: DecodeClient, silent: tuple[Silent, Target]) -> None:
    call = asyncio.create_task(client.reserve(silent[1], key=HandoffKey("h"), terms=TERMS))
    await silent[0].called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_channels_are_bounded(peer: DecodePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_client, "MAX_CHANNELS", 2)
    client = DecodeClient(model=MODEL, timeout_s=5.0)
    for port in (1, 2, 3):
        with pytest.raises(UnavailableError):
            await client.abort(Target("x", f"127.0.0.1:{port}"), key=HandoffKey("h"), reason="t")
    assert await client.abort(Target("d0", peer.address), key=HandoffKey("h"), reason="t")
    assert len(client._channels) == 2
    await client.close()


async def test_only_a_commit_whose_sums_follow_waits_without_a_bound(
    silent: tuple[Silent, Target], tiny_model: Transformer
) -> None:
    manifest = prepare(tiny_model).manifest
    client = DecodeClient(model=MODEL, timeout_s=0.05)
    grant = Grant(slot=0, generation=1)
    with pytest.raises(DeadlineError):
        await client.commit(silent[1], manifest=manifest, grant=grant, prompt_token_ids=())
    ahead = replace(manifest, sums_follow=True)
    call = client.commit(silent[1], manifest=ahead, grant=grant, prompt_token_ids=())
    waiting = asyncio.ensure_future(call)
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    silent[0].answer.set()
    with pytest.raises(HandoffError, match="nothing this version knows"):
        await waiting
    await client.close()
