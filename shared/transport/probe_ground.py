"""Where canaries land: a few rooms behind the slab, so that no canary takes a handoff's memory.

A room is held by one canary at a time, under a slot number that no lease of the slab has. Like a
lease it has a generation and a token, ends by its own clock, and stays out of use while its writer
may still be writing.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequestError, OverloadedError, StaleWriteError
from shared.kv.checksum import crc32
from shared.kv.memory import KvMemory
from shared.transport.base import Grant, SlabWindow

PROBE_BYTES = 2**20
"""Bytes of a canary at most."""

PROBE_ROOMS = 4
"""Canaries at once; more are asked to come later."""

SPARE_BYTES = PROBE_ROOMS * PROBE_BYTES
"""Memory that the rooms take."""

FIRST_PROBE_SLOT = 2**31
"""Slots from here on are rooms; a slab does not get so far."""

LEASE_S = 10.0
"""A room whose canary is silent so long ends."""

WRITER_S = 30.0
"""Longest life of a writer that went away without a word."""

_TOKEN_BYTES = 16


@dataclass(slots=True)
class _Room:
    generation: int = 0
    length: int = 0
    token: bytes = b""
    until: float = 0.0
    writing: bool = False
    barred_until: float = 0.0


class ProbeGround:
    """The rooms; a `SlabWriter` and a `DirectLanding` for their slots.

    Args:
        memory: what peers write to.
        offset: where the rooms begin in it; at least `SPARE_BYTES` follow.
        incarnation: of this process.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        memory: KvMemory,
        *,
        offset: int,
        incarnation: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._offset = offset
        self._incarnation = incarnation
        self._clock = clock
        self._rooms = [_Room() for _ in range(PROBE_ROOMS)]
        self._generation = 0

    @property
    def num_open(self) -> int:
        """Rooms that are held."""
        now = self._clock()
        return sum(room.until > now for room in self._rooms)

    def open(self, length: int) -> Grant:
        """Gives a room.

        Raises:
            InvalidRequestError: it is to be empty, or larger than a room.
            OverloadedError: all are held.
        """
        if not 0 < length <= PROBE_BYTES:
            raise InvalidRequestError(
                f"a canary of {length} bytes was announced: 1 to {PROBE_BYTES} are taken"
            )
        now = self._clock()
        for index, room in enumerate(self._rooms):
            if room.until <= now and room.writing:
                self._bar(room)
            if room.until <= now and room.barred_until <= now:
                self._generation += 1
                self._rooms[index] = _Room(
                    generation=self._generation,
                    length=length,
                    token=secrets.token_bytes(_TOKEN_BYTES),
                    until=now + LEASE_S,
                )
                self._memory.store(self._start(index), memoryview(bytes(length)))
                return self._grant(index)
        raise OverloadedError(
            f"all {PROBE_ROOMS} rooms for canaries are held: others try their transports now; "
            "try again in a moment",
            code="probe_rooms_full",
            retry_after_s=1.0,
        )

    def close(self, slot: int, generation: int, *, token: bytes) -> int:
        """Ends a canary; returns the CRC-32 of its room.

        Raises:
            StaleWriteError: the room is not held (any more), or by somebody else.
        """
        self.authorize(slot, generation, token=token)
        room = self._held(slot, generation)
        checksum = crc32(self._memory.fetch(self._start(slot - FIRST_PROBE_SLOT), room.length))
        room.until = 0.0
        if room.writing:
            self._bar(room)
        return checksum

    # --- what receivers ask -------------------------------------------------------------------

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """See `SlabWriter.authorize`."""
        if not hmac.compare_digest(self._held(slot, generation).token, token):
            raise StaleWriteError(
                "a room for a canary was named without its token: a stranger, or another version; "
                "see who reaches this port"
            )

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        """See `SlabWriter.write`."""
        start = self._fitting(slot, generation, offset=offset, length=data.nbytes)
        self._memory.store(start, data)

    def heartbeat(self, slot: int, generation: int) -> None:
        """See `SlabWriter.heartbeat`."""
        room = self._held(slot, generation)
        room.until = self._clock() + LEASE_S
        room.writing = True

    def window(self, slot: int, generation: int) -> SlabWindow:
        """See `DirectLanding.window`."""
        self.heartbeat(slot, generation)
        index = slot - FIRST_PROBE_SLOT
        return SlabWindow(offset=self._start(index), nbytes=self._rooms[index].length)

    def landed(self, *, slot: int, generation: int, offset: int, length: int) -> memoryview:
        """See `DirectLanding.landed`."""
        start = self._fitting(slot, generation, offset=offset, length=length)
        return self._memory.fetch(start, length)

    def arrived(self, *, slot: int, generation: int, offset: int, length: int) -> None:
        """See `DirectLanding.arrived`."""
        self._fitting(slot, generation, offset=offset, length=length)

    def writer_closed(
        self,
        slot: int,
        generation: int,
        *,
        clean: bool,
        drained: bool = True,
        sums: Sequence[int] = (),
    ) -> None:
        """See `DirectLanding.writer_closed`; a canary that broke off ends with its writer."""
        del sums  # a canary has no segments
        room = self._rooms[slot - FIRST_PROBE_SLOT]
        if room.generation != generation:
            return
        if drained:
            room.writing = False
            room.barred_until = 0.0
        if not clean:
            room.until = 0.0
            if not drained:
                self._bar(room)

    def _fitting(self, slot: int, generation: int, *, offset: int, length: int) -> int:
        """Renews a room's lease; where its bytes lie in the memory."""
        self.heartbeat(slot, generation)
        room = self._held(slot, generation)
        if offset < 0 or offset + length > room.length:
            raise StaleWriteError(
                f"bytes {offset}..{offset + length} leave the canary's room of {room.length}; "
                "the sender runs another version"
            )
        return self._start(slot - FIRST_PROBE_SLOT) + offset

    def _bar(self, room: _Room) -> None:
        room.writing = False
        room.barred_until = self._clock() + WRITER_S

    def _held(self, slot: int, generation: int) -> _Room:
        index = slot - FIRST_PROBE_SLOT
        room = self._rooms[index] if 0 <= index < PROBE_ROOMS else None
        if room is None or room.generation != generation or room.until <= self._clock():
            raise StaleWriteError(
                "a canary's room is not held: it took too long, or its process restarted; "
                "start another one"
            )
        return room

    def _grant(self, index: int) -> Grant:
        room = self._rooms[index]
        return Grant(
            slot=FIRST_PROBE_SLOT + index,
            generation=room.generation,
            lease_ms=round(LEASE_S * 1000),
            incarnation=self._incarnation,
            token=room.token,
        )

    def _start(self, index: int) -> int:
        return self._offset + index * PROBE_BYTES
