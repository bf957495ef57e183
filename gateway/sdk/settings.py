"""How a client reaches a gateway."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypts the connection; the files are read once, when it is opened."""

    ca: Path | None = None
    """PEM file of the authorities that the gateway must be certified by; None: the system's."""
    cert: Path | None = None
    """PEM file of the client's own certificate, for a gateway or a proxy that asks for one."""
    key: Path | None = None
    """PEM file of its key."""
    name: str = ""
    """Name that the gateway's certificate carries; empty expects the host of its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed call is made again: only before any part of its answer was handed over."""

    attempts: int = 3
    """Calls in all; 1 never repeats one."""
    pause_s: float = 0.2
    """About the first pause, in seconds; each further one is twice as long."""
    longest_s: float = 10.0
    """Longest pause, in seconds; a gateway that asks for a longer one is not asked again, its error
    says how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What all calls of one client have in common."""

    address: str
    """host:port of the gateway's gRPC server."""
    api_key: str = field(default="", repr=False)
    """Sent with every call when there is one."""
    tls: Tls | None = None
    """None is plain text."""
    timeout_s: float | None = None
    """Longest life of a call, its repetitions included; None leaves it to the gateway."""
    retry: Retry = Retry()
    """When a call is made again."""
