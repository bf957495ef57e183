"""The end of a worker's working life: no new grants, what runs may finish, then it is over."""

import asyncio
import time

import structlog

from decode_service.engine.reservations import ReservationTable

SAY_EVERY_S = 5.0
"""Seconds between log lines of the countdown."""

_LOOK_EVERY_S = 0.02

_log = structlog.get_logger(__name__)


async def drain(table: ReservationTable, *, cap_s: float) -> bool:
    """Refuses new reservations and waits until nothing is held; False when that took too long."""
    table.draining = True
    until = time.monotonic() + cap_s
    say_at = time.monotonic()
    while not table.idle:
        now = time.monotonic()
        if now >= until:
            _log.warning("drain gives up what still runs", handoffs=table.num_live)
            return False
        if now >= say_at:
            say_at = now + SAY_EVERY_S
            _log.info("draining", handoffs=table.num_live, at_most_s=round(until - now))
        await asyncio.sleep(_LOOK_EVERY_S)
    _log.info("drained")
    return True
