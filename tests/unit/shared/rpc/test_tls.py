"""Mutual TLS between roles: real servers, wrong certificates, renewal without a restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.rpc.channel import open_channel
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.server import RpcServer, build_server
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import Certificates, TlsFiles
from tests.support.tls_files import Authority, Identity

NAME = "worker.tandem.internal"


def certificates(identity: Identity) -> Certificates:
    return Certificates(TlsFiles(cert=identity.cert, key=identity.key, ca=identity.ca))


def peer(identity: Identity, *, name: str = NAME) -> PeerTls:
    return PeerTls(certificates=certificates(identity), name=name)


async def alive(channel: grpc.aio.Channel) -> bool:
    """Asks for health; False when the connection is refused."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service="liveness")
    try:
        answer = await stub.Check(request, timeout=10.0)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def server(authority: Authority, tmp_path: Path) -> AsyncIterator[RpcServer]:
    own = certificates(authority.issue(tmp_path / "server", NAME))
    server = build_server(host="127.0.0.1", port=0, service_names=(), certificates=own)
    await server.start()
    yield server
    await server.stop()


async def test_only_peers_of_the_same_authority_get_through(server, authority, tmp_path) -> None:
    good = peer(authority.issue(tmp_path / "good", "gateway"))
    stranger = peer(Authority().issue(tmp_path / "stranger", "gateway"))
    misnamed = peer(authority.issue(tmp_path / "named", "gateway"), name="other.internal")
    for tls, served in ((good, True), (stranger, False), (misnamed, False)):
        async with open_channel(server.address, own_connection=True, tls=tls) as channel:
            assert await alive(channel) is served


async def test_a_client_without_a_certificate_and_plain_text_are_refused(server, authority):
    credentials = grpc.ssl_channel_credentials(root_certificates=authority.pem)
    options = [("grpc.ssl_target_name_override", NAME)]
    async with grpc.aio.secure_channel(server.address, credentials, options=options) as channel:
        assert not await alive(channel)
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert not await alive(channel)


async def test_both_sides_renew_without_a_restart(server, authority, tmp_path) -> None:
    own = authority.issue(tmp_path / "client", "gateway")
    pool = ChannelPool(tls=peer(own), own_connection=True)
    try:
        before = pool.get(server.address)
        assert await alive(before)
        assert pool.get(server.address) is before
        renewed = Authority()
        renewed.issue(tmp_path / "server", NAME)
        old = peer(authority.issue(tmp_path / "old", "gateway"))
        async with open_channel(server.address, own_connection=True, tls=old) as channel:
            assert not await alive(channel)
        renewed.issue(tmp_path / "client", "gateway")
        after = pool.get(server.address)
        assert after is not before
        assert await alive(after)
    finally:
        await pool.close()


async def test_calls_on_a_retired_channel_end_by_themselves(server, authority, tmp_path) -> None:
    authority.issue(tmp_path / "client", "gateway")
    own = Identity(*(tmp_path / "client" / f"{name}.pem" for name in ("cert", "key", "ca")))
    pool = ChannelPool(tls=peer(own), own_connection=True)
    try:
        stub = health_pb2_grpc.HealthStub(pool.get(server.address))
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="liveness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        authority.issue(tmp_path / "client", "gateway")
        assert await alive(pool.get(server.address))
        await server.health.set_alive(False)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
    finally:
        await pool.close()


async def test_the_pool_is_bounded_and_can_be_closed_twice(server) -> None:
    pool = ChannelPool(max_channels=2)
    channels = [pool.get(f"127.0.0.1:{port}") for port in (1, 2)]
    assert pool.get("127.0.0.1:1") is channels[0]
    pool.get("127.0.0.1:3")
    assert len(pool) == 2
    assert pool.get("127.0.0.1:1") is channels[0]
    await asyncio.sleep(0)
    await pool.close()
    await pool.close()
    assert len(pool) == 0
