"""Slab slots of ended handoffs whose writers may still be alive: nobody else may have them yet."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.kv.slab import Slab, SlabLease
from shared.types.handoff import HandoffKey, HandoffState, HandoffStateMachine


@dataclass(frozen=True, slots=True)
class _Waiting:
    generation: int
    until: float
    machine: HandoffStateMachine


class Quarantine:
    """Keeps slots until their writer is gone, or for the longest that one could live.

    Args:
        slab: takes the slots back.
        longest_s: longest wait for a writer, in seconds.
        clock: monotonic seconds.
    """

    def __init__(self, slab: Slab, *, longest_s: float, clock: Callable[[], float]) -> None:
        self._slab = slab
        self._longest_s = longest_s
        self._clock = clock
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, slot: int, generation: int) -> bool:
        """Whether this grant of a slot waits here."""
        waiting = self._waiting.get(slot)
        return waiting is not None and waiting.generation == generation

    def waits_for(self, key: HandoffKey) -> bool:
        """Whether a write of this handoff is or can be outstanding."""
        return any(waiting.machine.key == key for waiting in self._waiting.values())

    def put(self, lease: SlabLease, machine: HandoffStateMachine) -> None:
        """Closes a slot to writes; it is given back later."""
        self._slab.quarantine(lease.slot, lease.generation)
        self._waiting[lease.slot] = _Waiting(
            lease.generation, self._clock() + self._longest_s, machine
        )

    def end(self, slot: int) -> None:
        """The writer is gone: the slot goes back."""
        waiting = self._waiting.pop(slot)
        self._slab.release(slot, waiting.generation)
        if waiting.machine.state is HandoffState.DRAINING:
            waiting.machine.advance(HandoffState.ABORTED)

    def reap(self) -> None:
        """Gives back the slots that waited long enough."""
        now = self._clock()
        for slot in [s for s, waiting in self._waiting.items() if waiting.until <= now]:
            self.end(slot)
