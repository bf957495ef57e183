"""Who holds which slab slot and which pages, from the grant to the release.

One thread (the process's event loop) owns the table, the slab and the page pools; the engine thread
only touches the pages of adopted handoffs. Every hold has its own deadline, ended handoffs are
remembered for a while so that late messages are recognised, and a slot whose writer may still be
alive is quarantined until it is gone.
"""

from collections.abc import Callable, Iterable, Sequence

from decode_service.engine.admission import Capacity, admit
from decode_service.engine.grant_check import check_token
from decode_service.engine.handoffs import (
    Busy,
    BusyReason,
    HandoffCounters,
    PastHandoffs,
    Reservation,
    ReservationLimits,
    ReserveSpec,
    not_granted,
    stale,
)
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.page_grant import free_all, free_own, take_pages
from decode_service.engine.quarantine import Quarantine
from shared.errors import InternalError
from shared.kv.slab import Slab
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine

BEFORE_COMMIT = frozenset({HandoffState.RESERVED, HandoffState.STREAMING, HandoffState.SEALED})
OPEN_TO_WRITES = frozenset({HandoffState.RESERVED, HandoffState.STREAMING})
BUSY_RETRY_S = 0.05


class ReservationTable:
    """The owner of the landing slab and of page grants; also the transport's SlabWriter.

    Args:
        slab: where pushes land.
        cache: gives pages.
        capacity: what could be granted at most, and the model that must match.
        limits: durations.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        slab: Slab,
        cache: PagedKvCache,
        *,
        capacity: Capacity,
        limits: ReservationLimits,
        clock: Callable[[], float],
    ) -> None:
        self._slab = slab
        self._cache = cache
        self._capacity = capacity
        self._limits = limits
        self._clock = clock
        self._live: dict[HandoffKey, Reservation] = {}
        self._by_slot: dict[int, Reservation] = {}
        self._quarantine = Quarantine(slab, longest_s=limits.quarantine_s, clock=clock)
        self._past = PastHandoffs(remember_s=limits.remember_s, remember_max=limits.remember_max)
        self.draining = False
        self.counters = HandoffCounters()

    def reserve(self, spec: ReserveSpec) -> Reservation | Busy:
        """Grants a slab slot and all pages of a request; asking again gives the same grant.

        Raises:
            StaleWriteError: the handoff is further on, over, or was granted for other sizes.
            ManifestError: another model.
            InvalidRequestError: it can never fit.
        """
        again = self._repeated(spec)
        if again is not None:
            return again
        tokens = admit(spec, self._capacity)
        if self.draining:
            return self._busy(BusyReason.DRAINING, retry_after_s=1.0)
        lease = self._slab.reserve(spec.slab_bytes)
        if lease is None:
            return self._busy(BusyReason.SLAB_FULL)
        pages = take_pages(self._cache, tokens, num_branches=spec.num_branches)
        if pages is None:
            self._slab.release(lease.slot, lease.generation)
            return self._busy(BusyReason.PAGES_FULL)
        machine = HandoffStateMachine(spec.handoff, state=HandoffState.RESERVED)
        deadline = self._clock() + self._limits.lease_s
        own = dict(enumerate(pages[1:], start=1))
        granted = Reservation(spec, lease, pages[0], machine, deadline, own_pages=own)
        self._live[spec.handoff] = granted
        self._by_slot[lease.slot] = granted
        self.counters.granted += 1
        return granted

    def lease_ms(self, reservation: Reservation) -> int:
        """Remaining duration of a grant, in milliseconds."""
        if reservation.deadline is None:
            return 0
        return max(0, round((reservation.deadline - self._clock()) * 1000))

    # --- the transport's side (SlabWriter) --------------------------------------------------

    def authorize(self, slot: int, generation: int, *, token: bytes) -> None:
        """Lets the holder of a grant name its slot; StaleWriteError for everybody else."""
        check_token(self._held(slot, generation), token, counters=self.counters)

    def write(self, *, slot: int, generation: int, offset: int, data: memoryview) -> None:
        """Lands bytes and renews the lease.

        Raises:
            StaleWriteError: the lease ended, the push was sealed, or the bytes do not fit.
        """
        granted = self._writable(slot, generation)
        self._slab.write(slot=slot, generation=generation, offset=offset, data=data)
        self._alive(granted)

    def heartbeat(self, slot: int, generation: int) -> None:
        """Renews the lease; StaleWriteError when it ended or the push was sealed."""
        self._alive(self._writable(slot, generation))

    def arrived(self, slot: int, generation: int, *, offset: int, length: int) -> None:
        """Renews the lease of bytes that a peer wrote, and lets them be taken; as `heartbeat`."""
        granted = self._writable(slot, generation)
        self._alive(granted)
        if granted.arrival is not None:
            granted.arrival.landed(offset, length)

    def writer_closed(
        self,
        slot: int,
        generation: int,
        *,
        clean: bool,
        drained: bool = True,
        sums: Sequence[int] = (),
    ) -> None:
        """The push is over; a broken one ends the handoff, an undrained one still bars its slot."""
        if self._quarantine.holds(slot, generation):
            if drained:
                self._quarantine.end(slot)
            return
        granted = self._by_slot.get(slot)
        if granted is None or granted.lease.generation != generation:
            return
        granted.writer_active = not drained
        if granted.state not in OPEN_TO_WRITES:
            return
        if not clean:
            self._abort(granted)
            return
        granted.seal(sums, deadline=self._clock() + self._limits.lease_s)

    def find(self, key: HandoffKey) -> Reservation:
        """The live handoff of this name.

        Raises:
            StaleWriteError: there is none (any more).
        """
        granted = self._live.get(key)
        if granted is not None:
            return granted
        state = self._late(key)
        raise stale(key, f"is {state.value}" if state else "is not known here")

    def begin_commit(self, granted: Reservation) -> None:
        """Pins a sealed handoff for its intake.

        Raises:
            StaleWriteError: it is not sealed.
        """
        granted.machine.advance(HandoffState.COMMITTED)
        granted.pinned = True
        granted.deadline = None

    def end_commit(self, granted: Reservation) -> None:
        """Unpins after the intake: the slab slot goes back, and without adoption everything does.

        Raises:
            StaleWriteError: it was aborted meanwhile.
        """
        granted.pinned = False
        if granted.state is not HandoffState.COMMITTED or granted.adopted is None:
            self._abort(granted)
            if granted.adopted is not None:
                raise stale(granted.key, "was aborted during its commit")
            return
        self._drop_slab(granted)
        granted.machine.advance(HandoffState.ADOPTED)
        granted.deadline = self._clock() + self._limits.adopt_lease_s
        self.counters.adopted += 1
        granted.notify()

    def claim(self, key: HandoffKey, branch: int = 0) -> Reservation:
        """Hands the adopted pages of an answer to the one Decode call that may use them.

        Raises:
            StaleWriteError: not adopted, or already claimed.
        """
        granted = self.find(key)
        adopted = granted.state is HandoffState.ADOPTED
        if not adopted or not granted.branches.claim(branch):
            self._count_late(granted)
            what = f"answer {branch} already decodes" if adopted else f"is {granted.state.value}"
            raise stale(key, f"{what} and cannot start to decode")
        if not granted.branches.waiting:
            granted.deadline = None
        return granted

    def release(self, granted: Reservation, branch: int = 0) -> None:
        """Ends a claimed answer: the engine no longer uses its pages."""
        granted.branches.end(branch)
        free_own(self._cache, granted, [branch])
        self._release_if_over(granted)

    def abort(self, key: HandoffKey) -> bool:
        """Ends a handoff that does not decode, or an unknown one; says if no write can be left."""
        granted = self._live.get(key)
        if granted is None:
            if self._late(key) is None:
                machine = HandoffStateMachine(key, state=HandoffState.ABORTED)
                self._past.remember(machine, now=self._clock())
        else:
            self._give_up(granted, range(granted.branches.count))
        return not self._quarantine.waits_for(key)

    def give_up(self, key: HandoffKey, branch: int) -> None:
        """Nobody will ask for an answer; one that is not among them means all that wait."""
        granted = self._live.get(key)
        if granted is not None:
            count = granted.branches.count
            self._give_up(granted, [branch] if branch < count else range(count))

    def reap(self) -> None:
        """Ends leases that ran out, quarantines that lasted too long, and old memories."""
        now = self._clock()
        live = list(self._live.values())
        for granted in [g for g in live if g.deadline is not None and g.deadline <= now]:
            self._expire(granted)
        self._quarantine.reap()
        self._past.forget(now)

    @property
    def num_live(self) -> int:
        """Handoffs that hold something."""
        return len(self._live)

    @property
    def num_quarantined(self) -> int:
        """Slots that wait for their writers."""
        return len(self._quarantine)

    @property
    def num_remembered(self) -> int:
        """Ended handoffs that are still known."""
        return len(self._past)

    def holds(self, key: HandoffKey) -> bool:
        """Whether a handoff holds anything here."""
        return key in self._live

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self._live and not len(self._quarantine)

    def states(self) -> dict[HandoffState, int]:
        """How many live handoffs are in each state."""
        found = [granted.state for granted in self._live.values()]
        return {state: found.count(state) for state in HandoffState}

    def check_integrity(self) -> None:
        """Verifies that slots and pages are held exactly by what the table knows.

        Raises:
            InternalError: they are not.
        """
        self._slab.check_integrity()
        self._cache.check_integrity()
        slots = sum(g.holds_slab for g in self._live.values())
        if slots != len(self._by_slot) or slots + self.num_quarantined != self._slab.num_leases:
            raise InternalError(
                f"{self._slab.num_leases} slab leases are held, but the table knows {slots} and "
                f"{self.num_quarantined} in quarantine: a slot was lost; report this"
            )

    def _repeated(self, spec: ReserveSpec) -> Reservation | None:
        granted = self._live.get(spec.handoff)
        if granted is None:
            state = self._late(spec.handoff)
            if state is not None:
                raise stale(spec.handoff, f"is {state.value} and cannot be reserved again")
            return None
        if granted.state not in OPEN_TO_WRITES or granted.spec != spec:
            self._count_late(granted)
            raise stale(spec.handoff, f"is {granted.state.value} or was granted other sizes")
        self._renew(granted)
        return granted

    def _busy(self, reason: BusyReason, *, retry_after_s: float = BUSY_RETRY_S) -> Busy:
        self.counters.busy += 1
        return Busy(reason=reason, retry_after_s=retry_after_s)

    def _held(self, slot: int, generation: int) -> Reservation:
        granted = self._by_slot.get(slot)
        if granted is None or granted.lease.generation != generation:
            self.counters.late += 1
            raise not_granted(slot, generation)
        return granted

    def _writable(self, slot: int, generation: int) -> Reservation:
        granted = self._held(slot, generation)
        if granted.state not in OPEN_TO_WRITES:
            self._count_late(granted)
            raise stale(granted.key, f"is {granted.state.value} and takes no more bytes")
        return granted

    def _alive(self, granted: Reservation) -> None:
        granted.writer_active = True
        if granted.state is HandoffState.RESERVED:
            granted.machine.advance(HandoffState.STREAMING)
        self._renew(granted)

    def _renew(self, granted: Reservation) -> None:
        granted.deadline = self._clock() + self._limits.lease_s

    def _count_late(self, granted: Reservation) -> None:
        granted.machine.late_events += 1
        self.counters.late += 1

    def _late(self, key: HandoffKey) -> HandoffState | None:
        state = self._past.late(key)
        self.counters.late += state is not None
        return state

    def _abort(self, granted: Reservation) -> None:
        if granted.state is not HandoffState.ABORTING:
            granted.machine.advance(HandoffState.ABORTING)
            granted.notify()
        if granted.pinned:
            return
        self.counters.aborted += 1
        if granted.holds_slab and granted.writer_active:
            granted.machine.advance(HandoffState.DRAINING)
        else:
            granted.machine.advance(HandoffState.ABORTED)
        self._bury(granted)

    def _give_up(self, granted: Reservation, branches: Iterable[int]) -> None:
        """Ends answers that wait for their call; what runs is ended by its own stream."""
        dropped = granted.branches.give_up(branches)
        if granted.state is not HandoffState.ADOPTED:
            # What is being written or copied keeps its pages until the handoff ends as a whole.
            if granted.branches.over:
                self._abort(granted)
            return
        free_own(self._cache, granted, dropped)
        if granted.branches.over and not granted.branches.started:
            self._abort(granted)
            return
        if not granted.branches.waiting:
            granted.deadline = None
        self._release_if_over(granted)

    def _release_if_over(self, granted: Reservation) -> None:
        if granted.branches.over:
            granted.machine.advance(HandoffState.RELEASED)
            self.counters.released += 1
            self._bury(granted)

    def _expire(self, granted: Reservation) -> None:
        if granted.running:
            self._give_up(granted, granted.branches.waiting)
            return
        granted.machine.advance(HandoffState.EXPIRED)
        self.counters.expired += 1
        self._bury(granted)

    def _bury(self, granted: Reservation) -> None:
        self._drop_slab(granted)
        free_all(self._cache, granted)
        del self._live[granted.key]
        self._past.remember(granted.machine, now=self._clock())
        granted.notify()

    def _drop_slab(self, granted: Reservation) -> None:
        if not granted.holds_slab:
            return
        granted.holds_slab = False
        granted.stop_arrival()
        lease = granted.lease
        del self._by_slot[lease.slot]
        if not granted.writer_active:
            self._slab.release(lease.slot, lease.generation)
            return
        self._quarantine.put(lease, granted.machine)
