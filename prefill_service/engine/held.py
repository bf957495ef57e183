"""Memory for KV on its way, and computed KV held for a resend under a lease."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prefill_service.engine.parcel import Parcel
from shared.errors import HandoffError, InvalidRequestError
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class HeldKv:
    """A computed KV cache that can be sent again."""

    parcel: Parcel
    """The bytes and what they are."""
    machine: HandoffStateMachine
    """State of the newest attempt."""
    keys: set[HandoffKey] = field(default_factory=set)
    """Every attempt under which it was delivered."""
    expires: float = 0.0
    """End of the lease on the store's clock."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one resend that reads the bytes; they stay counted until it ends."""

    @property
    def nbytes(self) -> int:
        """Bytes of its slab."""
        return self.parcel.slab.nbytes


class HeldStore:
    """Bytes of active and held slabs under two bounds; the oldest held KV goes first.

    Args:
        buffer_bytes: bound of all slabs, active ones included.
        sealed_bytes: bound of the held ones.
        lease_s: seconds of a hold.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        buffer_bytes: int,
        sealed_bytes: int,
        lease_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self.lease_s = lease_s
        self.expired_total = 0
        self._buffer_bytes = buffer_bytes
        self._sealed_bytes = sealed_bytes
        self._clock = clock
        self._active_bytes = 0
        self._held_bytes = 0
        self._held: OrderedDict[HandoffKey, HeldKv] = OrderedDict()
        self._by_key: dict[HandoffKey, HeldKv] = {}
        self._freed = asyncio.Event()
        self.on_droppable: Callable[[], None] = lambda: None
        """Told when there is a hold that `make_room` can drop and could not before."""

    def __len__(self) -> int:
        """KV caches held."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes held for a resend."""
        return self._held_bytes

    @property
    def active_bytes(self) -> int:
        """Bytes of prompts that run or are being delivered."""
        return self._active_bytes

    async def admit(self, nbytes: int) -> None:
        """Waits until `nbytes` more of active slab fit, dropping held KV for them.

        Raises:
            InvalidRequestError: they exceed the bound even when nothing else is here.
        """
        while not self.admit_now(nbytes):
            self._freed.clear()
            await self._freed.wait()

    def admit_now(self, nbytes: int) -> bool:
        """The same without waiting; False when they do not fit.

        Raises:
            InvalidRequestError: they exceed the bound even when nothing else is here.
        """
        if nbytes > self._buffer_bytes:
            raise InvalidRequestError(
                f"the KV of this prompt takes {nbytes} bytes on its way, more than buffer_bytes "
                f"{self._buffer_bytes}: send a shorter prompt or let the worker have more memory",
                param="prompt",
            )
        while self._total + nbytes > self._buffer_bytes and self._held:
            self._drop_oldest()
        if self._total + nbytes > self._buffer_bytes:
            return False
        self._active_bytes += nbytes
        return True

    def discharge(self, nbytes: int) -> None:
        """Gives back what `admit` took."""
        self._active_bytes -= nbytes
        self._freed.set()

    def hold(self, held: HeldKv) -> bool:
        """Keeps computed KV under a fresh lease; False when it exceeds the bound by itself."""
        if held.nbytes > self._sealed_bytes:
            return False
        while self._held_bytes + held.nbytes > self._sealed_bytes:
            self._drop_oldest()
        held.expires = self._clock() + self.lease_s
        self._held[held.parcel.request.key] = held
        self._held_bytes += held.nbytes
        self._alias(held, held.parcel.request.key)
        self.on_droppable()
        return True

    def _alias(self, held: HeldKv, key: HandoffKey) -> None:
        """Makes a held cache known under one more attempt."""
        held.keys.add(key)
        self._by_key[key] = held

    def delivered(self, held: HeldKv, machine: HandoffStateMachine) -> None:
        """A resend arrived: held on under the new attempt too, with a fresh lease."""
        if held.keys:
            held.machine = machine
            held.expires = self._clock() + self.lease_s
            self._alias(held, machine.key)

    def get(self, key: HandoffKey) -> HeldKv | None:
        """What is held under this name."""
        return self._by_key.get(key)

    def renew(self, keys: list[HandoffKey]) -> list[HandoffKey]:
        """Starts the leases anew and returns the names that hold nothing."""
        unknown = []
        for key in keys:
            held = self._by_key.get(key)
            if held is None:
                unknown.append(key)
            else:
                held.expires = self._clock() + self.lease_s
        return unknown

    def release(self, key: HandoffKey) -> bool:
        """Drops what is held under this name; False when that is nothing."""
        held = self._by_key.get(key)
        if held is None:
            return False
        held.machine.try_advance(HandoffState.RELEASED)
        self._remove(held)
        return True

    def expire(self) -> int:
        """Drops everything whose lease is over; returns how many."""
        now = self._clock()
        over = [held for held in self._held.values() if held.expires <= now]
        for held in over:
            held.machine.try_advance(HandoffState.EXPIRED)
            self._remove(held)
        self.expired_total += len(over)
        return len(over)

    @asynccontextmanager
    async def reading(self, held: HeldKv) -> AsyncIterator[None]:
        """Keeps the bytes counted while a resend reads them, even when the hold ends meanwhile."""
        try:
            async with held.sending:
                if not held.keys:
                    raise HandoffError(
                        "nothing is held any more: the hold ended while another resend read it; "
                        "send the prompt again"
                    )
                try:
                    yield
                finally:
                    if not held.keys:
                        held.parcel.slab.close()
                        self.discharge(held.nbytes)
        finally:
            if held.keys:
                self.on_droppable()

    def make_room(self) -> bool:
        """Drops the oldest hold that nobody reads; False when there is none."""
        for held in self._held.values():
            if not held.sending.locked():
                held.machine.try_advance(HandoffState.EXPIRED)
                self._remove(held)
                return True
        return False

    def clear(self) -> None:
        """Drops everything."""
        while self._held:
            self._drop_oldest()

    @property
    def _total(self) -> int:
        return self._active_bytes + self._held_bytes

    def _drop_oldest(self) -> None:
        held = next(iter(self._held.values()))
        held.machine.try_advance(HandoffState.EXPIRED)
        self._remove(held)

    def _remove(self, held: HeldKv) -> None:
        del self._held[held.parcel.request.key]
        for key in held.keys:
            self._by_key.pop(key, None)
        held.keys.clear()
        self._held_bytes -= held.nbytes
        if held.sending.locked():
            self._active_bytes += held.nbytes
        else:
            held.parcel.slab.close()
        self._freed.set()
