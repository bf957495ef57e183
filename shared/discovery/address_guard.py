"""Where this process may connect: worker addresses come over the network and are not believed.

Whoever can write a card, or name a target, could otherwise make a role connect to what only its
host reaches: the metadata service of a cloud, a link-local device. An address is `host:port` and
nothing else (gRPC would take `unix:` and `dns:`, too); a name is looked up and all answers checked.
gRPC looks it up again to connect: a name server that lies to one of the two is not noticed.
"""

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Sequence

import structlog

from shared.errors import ConfigError, PermissionDeniedError, UnreachableError

CODE = "address_refused"

LOOK_UP_S = 2.0
"""Longest wait for a name server, in seconds."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEVER_BY_DEFAULT: tuple[_Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host, as a source only
        "169.254.0.0/16",  # link-local: metadata of AWS, Google, Azure and others
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "100.100.100.200/32",  # metadata of Alibaba
        "168.63.129.16/32",  # platform services of Azure
        "192.0.0.192/32",  # metadata of Oracle
        "::/128",
        "fe80::/10",  # link-local
        "ff00::/8",  # multicast
        "fd00:ec2::/32",  # metadata of AWS
        "fd20:ce::254/128",  # metadata of Google
        "64:ff9b:1::/48",  # IPv4 behind a network's own NAT64, in places only it knows
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_SPLIT = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_SCHEMES = frozenset({"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p"})
_NUMBER = re.compile(r"\d+|0[xX][0-9A-Fa-f]*")
_MAX_NAME = 253
_MAX_PORT = 65_535
_REMEMBER_S = 30.0
_MAX_REMEMBERED = 4_096

_log = structlog.get_logger(__name__)


class AddressGuard:
    """Decides whether an address may be connected to.

    Args:
        networks: CIDR networks that workers may be in; empty allows all but link-local, metadata,
            multicast and reserved ones. A listed network is allowed whatever it is.

    Raises:
        ConfigError: a network cannot be read.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(_network(text) for text in networks)
        self._checked: dict[str, float] = {}

    async def check(self, address: str) -> None:
        """Lets a good address pass; a name's answer is remembered for half a minute.

        A name that was good stays good while name servers are away: the connections to it live on.

        Raises:
            PermissionDeniedError: code `address_refused`.
            UnreachableError: a name that cannot be looked up.
        """
        host = _host_of(address)
        literal = _as_ip(host)
        if literal is not None:
            self._check_ip(literal, address)
            return
        now = time.monotonic()
        if self._checked.get(address, 0.0) > now:
            return
        try:
            found = await _look_up(host)
        except UnreachableError as error:
            if address not in self._checked:
                raise
            _log.warning("worker name not looked up; the last answer counts", why=error.message)
        else:
            self._checked.pop(address, None)
            for ip in found:
                self._check_ip(ip, address)
        if len(self._checked) >= _MAX_REMEMBERED:
            self._checked.clear()
        self._checked[address] = now + _REMEMBER_S

    def _check_ip(self, ip: _Address, address: str) -> None:
        plain = _unwrapped(ip)
        if self._networks:
            if any(plain in network for network in self._networks):
                return
            raise _refused(address, "it is in none of the networks in worker_networks")
        if any(plain in network for network in _NEVER_BY_DEFAULT):
            raise _refused(address, "link-local, metadata, multicast and reserved ones are refused")


def _host_of(address: str) -> str:
    match = _SPLIT.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= _MAX_PORT:
        raise _refused(address, "it is not host:port, and nothing else is taken")
    host: str = match["v6"] or match["host"]
    if _as_ip(host) is None and (match["v6"] or not _is_name(host)):
        raise _refused(address, "its host is neither a name nor an IP address")
    return host


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    # Resolvers read 2130706433 and 0x7f.1 as IPv4 addresses, gRPC reads unix:1 as a socket's path.
    plain = len(host) <= _MAX_NAME and not _NUMBER.fullmatch(labels[-1])
    plain = plain and host.lower() not in _SCHEMES
    return plain and all(_LABEL.fullmatch(label) for label in labels)


def _as_ip(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _unwrapped(ip: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for, where it stands for one."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip


async def _look_up(host: str) -> list[_Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_UP_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:  # a timeout is one
        why = str(error) or "no answer in time"
        raise UnreachableError(
            f"the worker's host {host} cannot be looked up ({why}): it is not started or not in "
            "DNS; correct its advertise_address"
        ) from error
    return [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"worker_networks holds {text!r}, which is no network ({error}); write 10.0.0.0/8",
            param="worker_networks",
        ) from error


def _refused(address: str, why: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"no connection to the worker address {address[:100]!r}: {why}; correct the worker's "
        "advertise_address, or list its network in worker_networks",
        code=CODE,
    )
