"""The token of a grant: who does not show it can neither write, nor end, nor commit a handoff."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from decode_service.app import DecodeServer
from decode_service.engine.handoffs import TOKEN_BYTES
from shared.errors import StaleWriteError
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey, HandoffState
from tests.support.decode_server import direct_tokens
from tests.support.prefill_peer import PrefillPeer, Prepared

KEY = HandoffKey("request", 1)
OTHER = HandoffKey("other", 1)


@pytest.fixture
def own_lines() -> Iterator[list[EventDict]]:
    """What our own code logs, which the standard library's loggers do not see."""
    with capture_logs() as lines:
        yield lines


async def test_each_grant_has_its_own_token_and_asking_again_gives_the_same(
    server: DecodeServer, peer: PrefillPeer, prepared: Prepared
) -> None:
    first = await peer.reserve(KEY, prepared)
    again = await peer.reserve(KEY, prepared)
    other = await peer.reserve(OTHER, prepared)
    assert len(first.token) == TOKEN_BYTES
    assert first.token == again.token != other.token
    for key in (KEY, OTHER):
        server.core.worker.abort(key, reason="the test is over")


async def test_a_stranger_can_neither_push_nor_commit_and_the_owner_goes_on(
    tiny_model: Transformer,
    server: DecodeServer,
    peer: PrefillPeer,
    prepared: Prepared,
    caplog: pytest.LogCaptureFixture,
    own_lines: list[EventDict],
) -> None:
    caplog.set_level(logging.DEBUG)
    table = server.core.worker.table
    grant = await peer.reserve(KEY, prepared)
    other = await peer.reserve(OTHER, prepared)
    wrong = [replace(grant, token=token) for token in (b"", bytes(TOKEN_BYTES), other.token)]
    for stranger in wrong:
        with pytest.raises(StaleWriteError, match="token of its grant"):
            await peer.push(stranger, prepared)
    assert table.find(KEY).state is HandoffState.RESERVED, "their streams' ends meant nothing"
    await peer.push(grant, prepared)
    for stranger in wrong:
        answer = await peer.commit(KEY, stranger, prepared)
        assert answer.rejected.code == "handoff_token_refused"
    answer = await peer.commit(KEY, grant, prepared)
    assert answer.WhichOneof("result") == "adopted", answer
    seen = await peer.decode(peer.decode_request(KEY, prepared))
    assert seen.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
    server.core.worker.abort(OTHER, reason="the test is over")
    async with httpx.AsyncClient() as client:
        metrics = (await client.get(f"http://{server.admin_address}/metrics")).text
    assert "tandem_handoff_tokens_refused_total 6.0" in metrics
    shown = "".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    shown += repr(own_lines)
    assert OTHER.handoff_id in [line.get("handoff_id") for line in own_lines]
    for secret in (grant.token, other.token):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
