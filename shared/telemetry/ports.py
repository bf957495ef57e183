"""Binding ports, with a clear word on who has a busy one."""

import ipaddress
import socket

import psutil

from shared.errors import ConfigError


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that is bound to `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 picks a free port.

    Raises:
        ConfigError: code `port_in_use` when the port is taken or the host is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named for asyncio, which turns Nagle's algorithm off only where it reads TCP:
    # a token written while one before is not acknowledged would wait for that, 40 ms on Linux.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise port_in_use_error(host, port, why=str(error)) from error
    return sock


def port_in_use_error(host: str, port: int, *, why: str = "") -> ConfigError:
    """The error for a port that cannot be bound, naming its owner when that can be seen."""
    owner = _owner(port)
    if owner:
        text = f"port {port} on {host} is in use by {owner}: another server runs there"
    else:
        reason = f" ({why})" if why else ""
        text = (
            f"cannot listen on {join_address(host, port)}{reason}: the port is in use or the host "
            "is not an address of this machine"
        )
    return ConfigError(
        f"{text}; stop the other server, choose another port, or use port 0 for a free one",
        code="port_in_use",
        param="port",
    )


def _owner(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return f"process {connection.pid}" if connection.pid else "another process"
    return ""
