"""The admin port, over real HTTP on a free port."""

import signal
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry

from shared.errors import ConfigError
from shared.telemetry.admin import Readiness, admin_server
from shared.telemetry.http_server import KEEP_ALIVE_S
from shared.telemetry.metrics import DecodeMetrics
from shared.telemetry.ports import bind_socket


def test_idle_connections_are_closed_by_clients_first() -> None:
    # openai's client keeps them this long; a server that closes first may cut a request off.
    expiry = httpx.Limits().keepalive_expiry
    assert expiry is not None
    assert 2 * expiry < KEEP_ALIVE_S


class Role:
    """A role whose state the test sets."""

    def __init__(self) -> None:
        self.readiness = Readiness(
            ready=False, phase="loading", progress=0.25, detail="reading weights"
        )
        self.alive = True
        registry = CollectorRegistry()
        self.metrics = DecodeMetrics(registry)
        self.server = admin_server(
            host="127.0.0.1",
            port=0,
            registry=registry,
            readiness=lambda: self.readiness,
            alive=lambda: self.alive,
            refresh=lambda: self.metrics.running.set(4),
        )


@pytest.fixture
async def role() -> AsyncIterator[Role]:
    role = Role()
    await role.server.start()
    yield role
    await role.server.stop()
    await role.server.stop()


async def get(role: Role, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://{role.server.address}{path}", headers=headers)


async def test_port_zero_reports_the_bound_port(role: Role) -> None:
    assert role.server.port > 0
    assert role.server.address == f"127.0.0.1:{role.server.port}"


async def test_metrics_are_refreshed_and_exposed(role: Role) -> None:
    answer = await get(role, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "tandem_running 4.0" in answer.text
    openmetrics = await get(role, "/metrics", accept="application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/health/ready", "/health", "/healthz"])
async def test_readiness_says_what_is_missing(role: Role, path: str) -> None:
    answer = await get(role, path)
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "not_ready",
        "phase": "loading",
        "progress": 0.25,
        "detail": "reading weights",
    }
    role.readiness = Readiness(ready=True)
    answer = await get(role, path)
    assert (answer.status_code, answer.json()["phase"]) == (200, "serving")


async def test_liveness_is_progress(role: Role) -> None:
    assert (await get(role, "/health/live")).status_code == 200
    role.alive = False
    answer = await get(role, "/health/live")
    assert (answer.status_code, answer.json()) == (503, {"status": "stalled"})


async def test_signal_handlers_are_left_alone() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    role = Role()
    await role.server.start()
    assert [signal.getsignal(number) for number in numbers] == before
    await role.server.stop()


async def test_a_busy_port_is_named(role: Role) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_socket("127.0.0.1", role.server.port)
    assert caught.value.error_code == "port_in_use"
    assert f"port {role.server.port} on 127.0.0.1 is in use by process" in str(caught.value)


def test_a_foreign_host_is_named() -> None:
    with pytest.raises(ConfigError, match="not an address"):
        bind_socket("192.0.2.1", 0)


def test_ipv6_hosts_bind() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    bind_socket("::1", 0).close()
