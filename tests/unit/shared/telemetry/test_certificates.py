"""TLS at the HTTP server: real handshakes, wrong certificates, renewal without a restart."""

import ssl
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from shared.errors import ConfigError
from shared.telemetry.certificates import Certificates, TlsFiles, mutual_tls_files, tls_files
from shared.telemetry.http_server import HttpServer
from tests.support.tls_files import Authority, Identity


async def hello(_request: Request) -> Response:
    return PlainTextResponse("hello")


def files_of(identity: Identity) -> TlsFiles:
    return TlsFiles(cert=identity.cert, key=identity.key)


async def get(server: HttpServer, *, trust: Authority) -> str:
    """One request over a connection of its own."""
    context = ssl.create_default_context(cadata=trust.pem.decode())
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return (await client.get(f"https://{server.address}/")).text


@pytest.fixture
async def make_server():
    servers = []

    async def make(files: TlsFiles) -> HttpServer:
        app = Starlette(routes=[Route("/", hello)])
        server = HttpServer(app, host="127.0.0.1", port=0, certificates=Certificates(files))
        await server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        await server.stop()


async def test_speaks_tls_and_clients_of_another_authority_refuse_it(make_server, tmp_path: Path):
    ours, other = Authority(), Authority()
    server = await make_server(files_of(ours.issue(tmp_path)))
    assert await get(server, trust=ours) == "hello"
    with pytest.raises(httpx.ConnectError):
        await get(server, trust=other)


async def test_a_renewed_certificate_counts_without_a_restart(make_server, tmp_path: Path):
    first, second = Authority(), Authority()
    server = await make_server(files_of(first.issue(tmp_path)))
    context = ssl.create_default_context(cadata=first.pem.decode())
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        assert (await client.get(f"https://{server.address}/")).text == "hello"
        second.issue(tmp_path)
        assert await get(server, trust=second) == "hello"
        with pytest.raises(httpx.ConnectError):
            await get(server, trust=first)
        assert (await client.get(f"https://{server.address}/")).text == "hello"  # still connected


async def test_a_half_renewed_pair_changes_nothing_and_is_said_once(make_server, tmp_path: Path):
    ours = Authority()
    server = await make_server(files_of(ours.issue(tmp_path / "a")))
    (tmp_path / "a" / "key.pem").write_bytes(ours.issue(tmp_path / "b").key.read_bytes())
    with capture_logs() as lines:
        for _ in range(2):
            assert await get(server, trust=ours) == "hello"
    assert len([line for line in lines if "not reloaded" in line["event"]]) == 1
    ours.issue(tmp_path / "a")
    assert await get(server, trust=ours) == "hello"


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    a, b = Authority().issue(tmp_path / "a"), Authority().issue(tmp_path / "b")
    with pytest.raises(ConfigError, match="another certificate"):
        Certificates(TlsFiles(cert=a.cert, key=b.key))
    with pytest.raises(ConfigError, match="missing"):
        Certificates(TlsFiles(cert=a.cert, key=tmp_path / "none.pem"))
    b.ca.write_text("no certificate")
    with pytest.raises(ConfigError, match="not PEM"):
        Certificates(TlsFiles(cert=b.cert, key=b.key, ca=b.ca))


def test_settings_that_belong_together_are_set_together(tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    assert tls_files(cert=None, key=None) is None
    with pytest.raises(ConfigError, match="belong together"):
        tls_files(cert=path, key=None)
    with pytest.raises(ConfigError, match="worker_tls_ca is missing"):
        mutual_tls_files(cert=path, key=path, ca=None, setting="worker_tls")
    assert mutual_tls_files(cert=path, key=path, ca=path) is not None
