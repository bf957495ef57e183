"""The drift alarm of a running decode service."""

import httpx
import pytest

from decode_service.app import DecodeServer
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from tests.support.decode_server import ServerPair, direct_tokens
from tests.support.prefill_peer import Prepared, prepare

KEY = HandoffKey("request", 1)


@pytest.fixture(scope="module")
def prepared(tiny_model: Transformer) -> Prepared:
    return prepare(tiny_model, mode="shared", tokens=150, kept=95)


async def admin_page(server: DecodeServer, path: str) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.get(f"http://{server.admin_address}{path}")


async def test_drift_shows_in_metrics_and_on_the_health_page_and_nowhere_else(
    tiny_model: Transformer, pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(drift_every=4, drift_alarm=1.0) as (server, peer):
        await peer.hand_over(KEY, prepared)
        answer = await peer.decode(peer.decode_request(KEY, prepared))
        assert answer.tokens == direct_tokens(tiny_model, prepared, num_tokens=15)
        metrics = (await admin_page(server, "/metrics")).text
        assert "tandem_drift_checks_total 3.0" in metrics
        assert "tandem_drift_alarms_total 3.0" in metrics
        assert 'tandem_sparse_mass_count{over="mean"} 3.0' in metrics
        assert 'tandem_sparse_mass_count{over="least"} 3.0' in metrics
        ready = await admin_page(server, "/health/ready")
        assert ready.status_code == 200
        assert ready.json()["status"] == "ready"
        assert "in 3 of the last 3 drift checks" in ready.json()["detail"]


async def test_mass_above_the_level_is_counted_without_alarm(
    pair: ServerPair, prepared: Prepared
) -> None:
    async with pair(drift_every=4, drift_alarm=0.001) as (server, peer):
        await peer.hand_over(KEY, prepared)
        await peer.decode(peer.decode_request(KEY, prepared))
        metrics = (await admin_page(server, "/metrics")).text
        assert "tandem_drift_checks_total 3.0" in metrics
        assert "tandem_drift_alarms_total 0.0" in metrics
        assert (await admin_page(server, "/health/ready")).json()["detail"] == ""


async def test_nothing_is_checked_unless_asked(pair: ServerPair, prepared: Prepared) -> None:
    async with pair() as (server, peer):
        await peer.hand_over(KEY, prepared)
        await peer.decode(peer.decode_request(KEY, prepared))
        assert "tandem_drift_checks_total 0.0" in (await admin_page(server, "/metrics")).text
