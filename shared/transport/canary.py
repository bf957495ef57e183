"""A canary: one MiB over a transport before a handoff depends on it, summed on both ends and timed.

What two workers say of their links may be wrong: capabilities lie in virtual machines, libraries
of two versions meet, a path is slow. So bytes decide. The receiver gives the canary a room of its
own; it goes by the same senders, frames and notices as a handoff.
"""

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Protocol

import structlog

from shared.errors import HandoffError, TandemError, TransportError
from shared.kv.checksum import crc32
from shared.transport.base import Grant, KvSender, KvTransport
from shared.transport.probe_ground import PROBE_BYTES

FAILED = "canary_failed"
"""Code: the transport did not carry it."""

TOO_SLOW = "canary_too_slow"
"""Code: it took too long."""

DAMAGED = "canary_damaged"
"""Code: other bytes arrived than were sent."""

DEFAULT_SECONDS = 5.0
"""Longest flight; at that a handoff of a long prompt would outlive its lease."""

_FIRST_BYTES = 4096
"""Written before the clock starts, so that setting the connection up is not timed."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryFlight:
    """A canary that arrived."""

    gbps: float
    """Gigabytes per second of its one MiB: less than a long transfer reaches."""


class ProbeCalls(Protocol):
    """The calls around a canary; errors are `TandemError`s."""

    async def open(self, address: str, length: int) -> Grant | None:
        """Asks a decode worker for room; None: it does not know of canaries."""

    async def close(self, address: str, grant: Grant) -> int:
        """Gives the room back; returns the CRC-32 of what is in it."""


async def fly_canary(
    transport: KvTransport,
    *,
    address: str,
    calls: ProbeCalls,
    longest_s: float = DEFAULT_SECONDS,
) -> CanaryFlight | None:
    """Sends one MiB to a decode worker.

    Args:
        transport: what is tried.
        address: of the worker.
        calls: ask for room and for the sum.
        longest_s: longest time of the flight, in seconds.

    Returns:
        How it went; None when the worker knows no canaries.

    Raises:
        TransportError: the transport does not work for this pair; its code says how it failed.
        OverloadedError: the worker has no room for it now.
        TandemError: the worker cannot be asked; that says nothing of the transport.
    """
    grant = await calls.open(address, PROBE_BYTES)
    if grant is None:
        return None
    payload = secrets.token_bytes(PROBE_BYTES)
    sender = transport.sender()
    landed: int | None = None
    try:
        async with asyncio.timeout(longest_s):
            seconds = await _send(sender, payload, address=address, grant=grant)
            landed = await calls.close(address, grant)
    except (HandoffError, TimeoutError) as error:
        raise _failed(transport.name, error, longest_s=longest_s) from error
    finally:
        if landed is None:
            await _give_back(sender, calls, address=address, grant=grant)
    if landed != crc32(payload):
        raise TransportError(
            f"a canary over {transport.name} arrived with other bytes than were sent: a library, "
            "a driver or the link damages data; see both workers' versions before it is used again",
            code=DAMAGED,
        )
    return CanaryFlight(gbps=(PROBE_BYTES - _FIRST_BYTES) / seconds / 1e9)


async def _send(sender: KvSender, payload: bytes, *, address: str, grant: Grant) -> float:
    """Sends the payload; returns the seconds of all but its first bytes."""
    view = memoryview(payload)
    await sender.open(address=address, grant=grant)
    await sender.write(0, view[:_FIRST_BYTES])
    started = time.perf_counter()
    await sender.write(_FIRST_BYTES, view[_FIRST_BYTES:])
    await sender.seal()
    return max(time.perf_counter() - started, 1e-9)


async def _give_back(sender: KvSender, calls: ProbeCalls, *, address: str, grant: Grant) -> None:
    """Ends a flight that broke off."""
    await sender.abort()
    try:
        await calls.close(address, grant)
    except TandemError as error:
        _log.debug("a canary's room ends by its own clock", error=error.message)


def _failed(name: str, error: Exception, *, longest_s: float) -> TransportError:
    if isinstance(error, HandoffError):
        return TransportError(f"a canary over {name} did not arrive ({error.message})", code=FAILED)
    return TransportError(
        f"a canary over {name} took longer than {longest_s:g} s: the link is stuck or very slow; "
        "see the network between both workers",
        code=TOO_SLOW,
    )
