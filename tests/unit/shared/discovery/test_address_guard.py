"""Which worker addresses are connected to."""

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from shared.discovery import address_guard
from shared.discovery.address_guard import AddressGuard
from shared.errors import ConfigError, PermissionDeniedError, UnreachableError


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8101", "10.1.2.3:1", "[::1]:8101", "[fd00::1]:65535", "192.168.0.9:8201"],
)
async def test_workers_on_private_and_loopback_addresses_pass(address: str) -> None:
    await AddressGuard().check(address)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254:80",
        "[fe80::1]:80",
        "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "[2002:a9fe:a9fe::1]:80",
        "100.100.100.200:80",
        "168.63.129.16:80",
        "0.0.0.0:80",
        "[::]:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "unix:/run/docker.sock",
        "unix:///run/docker.sock",
        "dns:///worker:8101",
        "dns:443",
        "UNIX:1",
        "xds:1",
        "worker:８０",
        "192.0.0.192:80",
        "[64:ff9b:1::a9fe:a9fe]:80",
        "ipv4:127.0.0.1:80",
        "vsock:1:2",
        "http://worker:8101",
        "worker",
        "worker:",
        "worker:0",
        "worker:65536",
        "worker:80/path",
        "user@worker:80",
        "worker:80,other:80",
        " worker:80",
        "worker:80\n",
        "[fe80::1%eth0]:80",
        "::1:80",
        "-worker:80",
        "wor ker:80",
        "2130706433:80",
        "0x7f.1:80",
        "127.1:80",
        "",
        "a" * 254 + ":80",
    ],
)
async def test_everything_else_is_refused(address: str) -> None:
    with pytest.raises(PermissionDeniedError) as refused:
        await AddressGuard().check(address)
    assert refused.value.error_code == "address_refused"


async def test_a_list_of_networks_replaces_the_default() -> None:
    guard = AddressGuard(["10.0.0.0/8", "169.254.7.0/24"])
    await guard.check("10.9.9.9:8101")
    await guard.check("169.254.7.1:8101")
    for address in ("127.0.0.1:8101", "169.254.169.254:80", "[::1]:80"):
        with pytest.raises(PermissionDeniedError, match="worker_networks"):
            await guard.check(address)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1/8"):
        AddressGuard(["10.0.0.1/8"])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A resolver with these names alone."""
    known: dict[str, list[str]] = {}

    def getaddrinfo(host, *_args, **_kwargs):
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


async def test_names_are_looked_up_and_every_answer_counts(names) -> None:
    names["prefill-0.workers"] = ["10.0.0.7"]
    names["metadata.google.internal"] = ["169.254.169.254"]
    names["rebinding.example"] = ["10.0.0.7", "169.254.169.254"]
    guard = AddressGuard()
    await guard.check("prefill-0.workers:8101")
    for host in ("metadata.google.internal", "rebinding.example"):
        with pytest.raises(PermissionDeniedError):
            await guard.check(f"{host}:80")
    with pytest.raises(UnreachableError):
        await guard.check("not-there:80")


async def test_a_name_that_was_good_stays_good_while_name_servers_are_away(
    names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_guard, "_REMEMBER_S", -1.0)  # every check looks up
    names["prefill-0.workers"] = ["10.0.0.7"]
    guard = AddressGuard()
    await guard.check("prefill-0.workers:8101")
    del names["prefill-0.workers"]
    with capture_logs() as lines:
        await guard.check("prefill-0.workers:8101")
    assert [line["log_level"] for line in lines] == ["warning"]
    names["prefill-0.workers"] = ["169.254.169.254"]
    with pytest.raises(PermissionDeniedError):
        await guard.check("prefill-0.workers:8101")
    del names["prefill-0.workers"]
    with pytest.raises(UnreachableError):
        await guard.check("prefill-0.workers:8101")


async def test_a_silent_name_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_args, **_kwargs) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(address_guard, "LOOK_UP_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(UnreachableError, match="no answer in time"):
        await AddressGuard().check("prefill-0.workers:8101")
